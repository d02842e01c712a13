// The GPU backend's products and layers against their definitions in double: on a pretended GPU, whose kernels are the
// templates compiled for the host, and on a real one.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "GpuMachine.h"
#include "gpu/LayerKernels.h"
#include "tilewright/tensor/Half.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::train;

namespace {

constexpr ElementType kTypes[] = {ElementType::F32, ElementType::BF16};

/// A matrix of the backend and what it holds.
struct Held {
  Matrix matrix;
  std::vector<double> values; ///< Rows without gaps.
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * matrix.columns + c)]; }
};

struct Layers {
  GpuBackend &gpu;
  uint32_t seed = 1;

  double random() {
    seed = seed * 1664525 + 1013904223;
    return static_cast<double>(seed >> 8) / (1 << 23) - 1;
  }

  template <class T> T *upload(const std::vector<T> &values) {
    const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
    Expected<void *> memory = gpu.allocate(bytes, "test");
    REQUIRE(memory);
    REQUIRE(gpu.fromHost(*memory, values.data(), bytes));
    return static_cast<T *>(*memory);
  }

  Held make(int64_t rows, int64_t columns, ElementType type, int64_t gap = 0, std::function<double()> value = {}) {
    Held held;
    std::vector<float> raw;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns + gap; ++c) {
        float x = c < columns ? static_cast<float>(value ? value() : random()) : NAN; // gaps are nobody's business
        if (type == ElementType::BF16) x = floatFromBFloat16(bfloat16FromFloat(x));
        raw.push_back(x);
        if (c < columns) held.values.push_back(static_cast<double>(x));
      }
    void *memory = nullptr;
    if (type == ElementType::F32) {
      memory = upload(raw);
    } else {
      std::vector<uint16_t> half(raw.size());
      bfloat16FromFloat(raw, half);
      memory = upload(half);
    }
    held.matrix = {memory, rows, columns, columns + gap, type};
    return held;
  }

  std::vector<double> read(const Matrix &m) {
    const int64_t elements = m.rows ? (m.rows - 1) * m.stride + m.columns : 0;
    std::vector<char> bytes(static_cast<size_t>(elements * sizeInBytes(m.type)));
    REQUIRE(gpu.toHost(bytes.data(), m.data, static_cast<int64_t>(bytes.size())));
    std::vector<double> values;
    for (int64_t r = 0; r < m.rows; ++r)
      for (int64_t c = 0; c < m.columns; ++c) {
        const int64_t at = r * m.stride + c;
        values.push_back(
            m.type == ElementType::F32
                ? static_cast<double>(reinterpret_cast<const float *>(bytes.data())[at])
                : static_cast<double>(floatFromBFloat16(reinterpret_cast<const uint16_t *>(bytes.data())[at])));
      }
    return values;
  }

  std::vector<float> readFloats(const float *data, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    REQUIRE(gpu.toHost(values.data(), data, count * 4));
    return values;
  }

  /// The matrix holds `expected`, up to `roundings` of its type and `slack` roundings of fp32, all relative to the
  /// largest element.
  void expect(const Matrix &m, const std::vector<double> &expected, double slack = 16, int roundings = 1) {
    const std::vector<double> found = read(m);
    REQUIRE(found.size() == expected.size());
    double worst = 0, largest = 1e-30;
    for (size_t i = 0; i < found.size(); ++i) {
      const double difference = std::abs(found[i] - expected[i]);
      worst = difference <= worst ? worst : difference; // NaN stays
      largest = std::max(largest, std::abs(expected[i]));
    }
    const double bound = slack * 0x1p-24 + (m.type == ElementType::BF16 ? roundings * 0x1p-8 : 0);
    CHECK_MESSAGE(worst <= bound * largest, (worst / largest), " of the largest; bound ", bound);
  }
};

void products(Layers t, ElementType type) {
  for (ElementType result : kTypes)
    for (bool transposeA : {false, true})
      for (bool transposeB : {false, true})
        for (bool add : {false, true}) {
          const int64_t m = 16, n = 24, k = 40;
          const Held a = transposeA ? t.make(k, m, type, 8) : t.make(m, k, type, 8),
                     b = transposeB ? t.make(n, k, type, 16) : t.make(k, n, type, 16), c = t.make(m, n, result, 8);
          std::vector<double> expected;
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
              double sum = add ? c.at(i, j) : 0;
              for (int64_t l = 0; l < k; ++l)
                sum += (transposeA ? a.at(l, i) : a.at(i, l)) * (transposeB ? b.at(j, l) : b.at(l, j));
              expected.push_back(sum);
            }
          REQUIRE(t.gpu.matmul(a.matrix, transposeA, b.matrix, transposeB, c.matrix, add));
          // cuBLASLt may round a product to its result's type before it adds it.
          t.expect(c.matrix, expected, 16, add ? 2 : 1);
        }
  // Parameters of the other type are converted.
  const ElementType other = type == ElementType::F32 ? ElementType::BF16 : ElementType::F32;
  const Held a = t.make(8, 16, type), b = t.make(8, 16, other, 8), c = t.make(8, 8, ElementType::F32);
  std::vector<double> expected;
  for (int64_t i = 0; i < 8; ++i)
    for (int64_t j = 0; j < 8; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < 16; ++l) {
        const double w = b.at(j, l);
        sum += a.at(i, l) * (type == ElementType::BF16
                                 ? static_cast<double>(floatFromBFloat16(bfloat16FromFloat(static_cast<float>(w))))
                                 : w);
      }
      expected.push_back(sum);
    }
  REQUIRE(t.gpu.matmul(a.matrix, false, b.matrix, true, c.matrix, false));
  t.expect(c.matrix, expected);
}

void embeddings(Layers t, ElementType type, int64_t vocabulary, int64_t rows, int64_t columns) {
  CAPTURE(vocabulary);
  std::vector<int32_t> tokens;
  for (int64_t r = 0; r < rows; ++r) // token 1 never, 0 often
    tokens.push_back(r % 3 == 0 ? 0 : static_cast<int32_t>(std::abs(t.random()) * static_cast<double>(vocabulary)));
  for (int32_t &token : tokens)
    if (token == 1 || token >= vocabulary) token = static_cast<int32_t>(vocabulary - 1);
  const int32_t *own = t.upload(tokens);
  for (ElementType other : kTypes) {
    const Held table = t.make(vocabulary, columns, other), y = t.make(rows, columns, type, 8);
    REQUIRE(t.gpu.embedding(own, table.matrix, y.matrix));
    std::vector<double> expected;
    for (int32_t token : tokens)
      for (int64_t c = 0; c < columns; ++c)
        expected.push_back(table.at(token, c));
    t.expect(y.matrix, expected, 0);
    const Held dY = t.make(rows, columns, type, 8);
    for (bool add : {false, true}) {
      const Held dTable = t.make(vocabulary, columns, other);
      std::vector<double> sums = add ? dTable.values : std::vector<double>(dTable.values.size());
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          sums[static_cast<size_t>(tokens[static_cast<size_t>(r)] * columns + c)] += dY.at(r, c);
      REQUIRE(t.gpu.embeddingBackward(own, dY.matrix, dTable.matrix, add));
      t.expect(dTable.matrix, sums, 64);
      // The same bits again.
      const Held once = t.make(vocabulary, columns, other), again = t.make(vocabulary, columns, other);
      for (const Held *to : {&once, &again})
        REQUIRE(t.gpu.embeddingBackward(own, dY.matrix, to->matrix, false));
      CHECK(t.read(once.matrix) == t.read(again.matrix));
    }
  }
}

void unknownTokens(Layers t, ElementType type) {
  const int32_t *tokens = t.upload(std::vector<int32_t>{2, -1, 5, 3});
  const Held table = t.make(5, 8, type), y = t.make(4, 8, type), dY = t.make(4, 8, type), dTable = t.make(5, 8, type);
  REQUIRE(t.gpu.embedding(tokens, table.matrix, y.matrix));
  const std::vector<double> rows = t.read(y.matrix);
  for (size_t i = 0; i < rows.size(); ++i)
    CHECK(std::isnan(rows[i]) == (i / 8 == 1 || i / 8 == 2));
  REQUIRE(t.gpu.embeddingBackward(tokens, dY.matrix, dTable.matrix, false));
  std::vector<double> expected(40);
  for (int64_t c = 0; c < 8; ++c) {
    expected[static_cast<size_t>(16 + c)] = dY.at(0, c);
    expected[static_cast<size_t>(24 + c)] = dY.at(3, c);
  }
  t.expect(dTable.matrix, expected, 0);
}

void norms(Layers t, ElementType type, int64_t rows, int64_t columns) {
  constexpr double epsilon = 1e-5;
  CAPTURE(columns);
  float *inverse = t.upload(std::vector<float>(static_cast<size_t>(rows)));
  for (ElementType other : kTypes)
    for (bool adds : {false, true}) {
      const Held x = t.make(rows, columns, type), addend = t.make(rows, columns, type),
                 sum = t.make(rows, columns, type), weight = t.make(1, columns, other), y = t.make(rows, columns, type);
      std::vector<double> sums = x.values, expected;
      for (size_t i = 0; adds && i < sums.size(); ++i)
        sums[i] += addend.values[i];
      REQUIRE(t.gpu.rmsNorm(x.matrix, adds ? addend.matrix : Matrix(), sum.matrix, weight.matrix, epsilon, y.matrix,
                            inverse));
      t.expect(sum.matrix, adds ? sums : sum.values, 1);
      const Matrix &normed = adds ? sum.matrix : x.matrix;
      sums = t.read(normed); // as it was rounded
      std::vector<double> inverses;
      for (int64_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (int64_t c = 0; c < columns; ++c)
          squares += std::pow(sums[static_cast<size_t>(r * columns + c)], 2);
        inverses.push_back(1 / std::sqrt(squares / static_cast<double>(columns) + epsilon));
        for (int64_t c = 0; c < columns; ++c)
          expected.push_back(sums[static_cast<size_t>(r * columns + c)] * inverses.back() * weight.at(0, c));
      }
      t.expect(y.matrix, expected);
      t.expect(Matrix::of(inverse, 1, rows), inverses);

      const Held dY = t.make(rows, columns, type), dX = t.make(rows, columns, type), dW = t.make(1, columns, other);
      std::vector<double> gradient = adds ? dX.values : std::vector<double>(dX.values.size()),
                          weights = adds ? dW.values : std::vector<double>(dW.values.size());
      for (int64_t r = 0; r < rows; ++r) {
        const double own = inverses[static_cast<size_t>(r)];
        double dot = 0;
        for (int64_t c = 0; c < columns; ++c)
          dot += dY.at(r, c) * weight.at(0, c) * sums[static_cast<size_t>(r * columns + c)];
        for (int64_t c = 0; c < columns; ++c) {
          const size_t i = static_cast<size_t>(r * columns + c);
          gradient[i] +=
              own * (dY.at(r, c) * weight.at(0, c) - sums[i] * dot * own * own / static_cast<double>(columns));
          weights[static_cast<size_t>(c)] += dY.at(r, c) * sums[i] * own;
        }
      }
      REQUIRE(t.gpu.rmsNormBackward(dY.matrix, normed, weight.matrix, inverse, dX.matrix, adds, dW.matrix, adds));
      t.expect(dX.matrix, gradient);
      t.expect(dW.matrix, weights, 64);
    }
}

void rotations(Layers t, ElementType type) {
  const int64_t headDim = 16, pairs = headDim / 2, length = 5, start = 2, rows = 3 * length;
  std::vector<float> cosines, sines;
  for (int64_t i = 0; i < (start + length) * pairs; ++i) {
    cosines.push_back(static_cast<float>(std::cos(0.37 * static_cast<double>(i))));
    sines.push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(i))));
  }
  const RotaryTables tables{t.upload(cosines), t.upload(sines), pairs};
  for (bool inverse : {false, true}) {
    const Held x = t.make(rows, 3 * headDim, type, 8);
    std::vector<double> expected = x.values;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < 3 * headDim; c += 2) {
        const size_t at = static_cast<size_t>((start + r % length) * pairs + c % headDim / 2);
        const double cosine = static_cast<double>(cosines[at]),
                     sine = static_cast<double>(inverse ? -sines[at] : sines[at]);
        expected[static_cast<size_t>(r * 3 * headDim + c)] = x.at(r, c) * cosine - x.at(r, c + 1) * sine;
        expected[static_cast<size_t>(r * 3 * headDim + c + 1)] = x.at(r, c) * sine + x.at(r, c + 1) * cosine;
      }
    REQUIRE(t.gpu.rope(x.matrix, headDim, length, start, tables, inverse));
    t.expect(x.matrix, expected, 4);
  }
}

void gates(Layers t, ElementType type) {
  const int64_t rows = 11, columns = 296;
  auto wide = [&] { return 30 * t.random(); };
  const Held gate = t.make(rows, columns, type, 16, wide), up = t.make(rows, columns, type),
             y = t.make(rows, columns, type), dY = t.make(rows, columns, type), dGate = t.make(rows, columns, type, 8),
             dUp = t.make(rows, columns, type);
  std::vector<double> expected, ofGate, ofUp;
  for (size_t i = 0; i < gate.values.size(); ++i) {
    const double g = gate.values[i], s = 1 / (1 + std::exp(-g));
    expected.push_back(g * s * up.values[i]);
    ofGate.push_back(dY.values[i] * up.values[i] * s * (1 + g * (1 - s)));
    ofUp.push_back(dY.values[i] * g * s);
  }
  REQUIRE(t.gpu.swiglu(gate.matrix, up.matrix, y.matrix));
  t.expect(y.matrix, expected);
  REQUIRE(t.gpu.swigluBackward(gate.matrix, up.matrix, dY.matrix, dGate.matrix, dUp.matrix));
  t.expect(dGate.matrix, ofGate);
  t.expect(dUp.matrix, ofUp);
}

void losses(Layers t, ElementType type, int64_t columns, int64_t gap) {
  CAPTURE(columns);
  const int64_t rows = 9;
  std::vector<int32_t> targets;
  for (int64_t r = 0; r < rows; ++r)
    targets.push_back(r % 4 == 2 ? -1 : static_cast<int32_t>((r * 37) % columns));
  const int32_t *own = t.upload(targets);
  int64_t element = 0;
  // Rows around 0, far above and far below, and one with a column that cannot be.
  auto value = [&] {
    const int64_t row = element++ / (columns + gap);
    if (row == 5 && element % columns == 3) return -std::numeric_limits<double>::infinity();
    return 20 * t.random() + (row == 3 ? 1000 : row == 4 ? -1000 : 0);
  };
  for (bool gradient : {false, true}) {
    element = 0;
    const Held x = t.make(rows, columns, type, gap, [&] { return value(); });
    double *loss = t.upload(std::vector<double>{0.5});
    double expected = 0.5;
    std::vector<double> gradients;
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t target = targets[static_cast<size_t>(r)];
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t c = 0; c < columns; ++c)
        largest = std::max(largest, x.at(r, c));
      for (int64_t c = 0; c < columns; ++c)
        sum += std::exp(x.at(r, c) - largest);
      for (int64_t c = 0; c < columns; ++c)
        gradients.push_back(target < 0 ? 0 : std::exp(x.at(r, c) - largest) / sum - (c == target));
      if (target >= 0) expected += std::log(sum) + largest - x.at(r, target);
    }
    REQUIRE(t.gpu.crossEntropy(x.matrix, own, loss, gradient));
    double found = 0;
    REQUIRE(t.gpu.toHost(&found, loss, sizeof(found)));
    CHECK(found == doctest::Approx(expected).epsilon(2e-6));
    if (gradient) t.expect(x.matrix, gradients);
  }
}

/// What is wrong with logits or a target shows in the loss, and in no other row's gradient.
void brokenLosses(Layers t, ElementType type) {
  for (int64_t what = 0; what < 3; ++what) {
    const Held x = t.make(2, 300, type);
    const float bad = what == 0 ? NAN : INFINITY;
    const uint16_t half = bfloat16FromFloat(bad);
    if (what < 2)
      REQUIRE(t.gpu.fromHost(x.matrix.at(1, 277), type == ElementType::F32 ? static_cast<const void *>(&bad) : &half,
                             sizeInBytes(type)));
    const int32_t *targets = t.upload(std::vector<int32_t>{7, what == 2 ? 300 : 8});
    double *loss = t.upload(std::vector<double>{0});
    REQUIRE(t.gpu.crossEntropy(x.matrix, targets, loss, true));
    double found = 0;
    REQUIRE(t.gpu.toHost(&found, loss, sizeof(found)));
    CHECK(!std::isfinite(found));
    for (double g : t.read(x.matrix.rowRange(0, 1)))
      CHECK(std::isfinite(g));
  }
}

void allLayers(GpuBackend &gpu, ElementType type) {
  CAPTURE(toString(type));
  products({gpu}, type);
  embeddings({gpu}, type, 7, 50, 264);
  embeddings({gpu}, type, 600, 40, 8);
  embeddings({gpu}, type, 3, 5000, 8); // more rows than a block's list holds
  unknownTokens({gpu}, type);
  norms({gpu}, type, 9, 16);
  norms({gpu}, type, 70, 520); // several chunks and tiles
  rotations({gpu}, type);
  gates({gpu}, type);
  losses({gpu}, type, 37, 0);
  losses({gpu}, type, 296, 0);
  losses({gpu}, type, 2601, 7);
  brokenLosses({gpu}, type);
}

} // namespace

TEST_CASE("products and layers of the GPU's backend, its kernels on the host, are their definitions in double") {
  for (ElementType type : kTypes) {
    GpuMachine machine = GpuMachine::pretended({.type = type});
    allLayers(*machine.backend, type);
  }
}

TEST_CASE("[gpu] products and layers of the GPU's backend are their definitions in double") {
  for (ElementType type : kTypes) {
    std::optional<GpuMachine> machine = GpuMachine::real({.type = type});
    if (!machine) return;
    allLayers(*machine->backend, type);
    REQUIRE(machine->backend->gpu()->synchronize());
  }
}

TEST_CASE("the layers' kernels compile for every GPU family, without spilling") {
  ContextOptions options = GpuMachine::options();
  options.refuseProblems = true; // spills
  auto context = Context::create(options);
  REQUIRE(context);
  if (!(*context)->nvrtc()) {
    MESSAGE("skipped: no NVRTC");
    return;
  }
  const CudaSource &source = layerKernels();
  for (const char *architecture : {"sm_80", "sm_90a", "sm_120"}) {
    auto code = (*context)->compile(source, architecture);
    REQUIRE_MESSAGE(code, (code ? "" : code.error().text() + code.error().log));
    CHECK(code->report.compile.registers > 0);
  }
}

TEST_CASE("libraries that are missing or something else are refused with what to do") {
  auto refusal = [](const std::string &cublasLt) {
    ContextOptions options = GpuMachine::pretendedOptions();
    options.environment->cublasLt = cublasLt;
    auto machine = GpuMachine::open(options, {});
    return machine ? std::string("opened") : machine.error().text();
  };
  const std::string missing = refusal("/none/libcublasLt.so");
  CHECK_MESSAGE(missing.find("TILEWRIGHT_CUBLASLT names /none/libcublasLt.so") != std::string::npos, missing);
  CHECK_MESSAGE(missing.find("--target cpu") != std::string::npos, missing);
  const std::string other = refusal(FAKE_CUDA_PATH);
  CHECK_MESSAGE(other.find("is not a cuBLASLt") != std::string::npos, other);
}
