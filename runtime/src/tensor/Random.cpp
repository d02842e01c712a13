#include "tilewright/tensor/Random.h"
#include "ParallelFor.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fmt/format.h>

namespace tilewright {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/// Natural logarithm of a positive normal number: exponent apart, then the series of atanh. Error below 1e-13.
double naturalLog(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023);
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent += 1;
  }
  const double s = (m - 1) / (m + 1), z = s * s;
  double sum = 0;
  for (int n = 17; n >= 1; n -= 2)
    sum = sum * z + 1.0 / n;
  return exponent * 0.69314718055994531 + 2 * s * sum;
}

/// Cosine and sine of a turn's fraction in [0, 1): the nearest quarter apart, then Taylor series for at most pi/4.
std::array<double, 2> cosineAndSine(double turn) {
  const double quarters = std::floor(turn * 4 + 0.5);
  const double r = (turn * 4 - quarters) * 1.5707963267948966, z = r * r;
  double c = 0, s = 0;
  for (int n = 16; n >= 2; n -= 2)
    c = (c + 1) * -z / (n * (n - 1.0));
  for (int n = 17; n >= 3; n -= 2)
    s = (s + 1) * -z / (n * (n - 1.0));
  c += 1;
  s = (s + 1) * r;
  switch (static_cast<int>(quarters) & 3) {
  case 0:
    return {c, s};
  case 1:
    return {-s, c};
  case 2:
    return {-c, -s};
  default:
    return {s, -c};
  }
}

/// Normal values number 2 * pair and 2 * pair + 1 of a stream (Box and Muller 1958).
std::array<double, 2> normalPair(uint64_t seed, uint64_t stream, uint64_t pair) {
  constexpr double unit = 0x1p-53;
  const double u = static_cast<double>((randomBits(seed, stream, 2 * pair) >> 11) + 1) * unit; // (0, 1]
  const double turn = static_cast<double>(randomBits(seed, stream, 2 * pair + 1) >> 11) * unit;
  const double radius = std::sqrt(-2 * naturalLog(u));
  const auto [c, s] = cosineAndSine(turn);
  return {radius * c, radius * s};
}

/// Calls change(b, h, row, values of the row) for every row and stores what it leaves.
template <class Change> Status transformRows(Tensor &tensor, const Change &change) {
  const TensorShape s = tensor.shape();
  const TensorView view = tensor.view();
  return parallelFor(s.batch * s.rows, 0, [&](int64_t i) {
    std::vector<double> values(static_cast<size_t>(s.dim));
    const int64_t b = i / s.rows, row = i % s.rows;
    for (int64_t h = 0; h < s.heads; ++h) {
      view.copyRow(b, h, row, values.data());
      change(b, h, row, values);
      tensor.setRow(b, h, row, values.data());
    }
  });
}

constexpr int64_t kOutlierPeriod = 16;
constexpr double kOutlierFactor = 50;

Status applyPattern(DataPattern pattern, double scale, RandomTensors &tensors) {
  using Row = std::vector<double>;
  const auto dim = static_cast<double>(tensors.q.shape().dim);
  const auto both = [&](auto change) -> Status {
    if (Status status = transformRows(tensors.q, change); !status) return status;
    return transformRows(tensors.k, change);
  };
  const auto setFirst = [](Tensor &tensor, double factor, double first, bool onlyRowZero) {
    return transformRows(tensor, [=](int64_t, int64_t, int64_t row, Row &values) {
      if (onlyRowZero && row != 0) return;
      for (double &value : values)
        value *= factor;
      values[0] = first;
    });
  };
  switch (pattern) {
  case DataPattern::Normal:
    return {};
  case DataPattern::OutlierChannels:
    return both([](int64_t, int64_t, int64_t, Row &values) {
      for (size_t d = 0; d < values.size(); d += kOutlierPeriod)
        values[d] *= kOutlierFactor;
    });
  case DataPattern::AllEqual:
    return both([](int64_t, int64_t, int64_t, Row &values) { values.assign(values.size(), 0.5); });
  case DataPattern::StrongFirstToken:
    // Its score is 4 * 4 * sqrt(dim) / sqrt(dim) = 16 above the others' at the default scale.
    if (Status status = setFirst(tensors.q, 1, 4, false); !status) return status;
    if (Status status = setFirst(tensors.k, 1, 0, false); !status) return status;
    return setFirst(tensors.k, 0, 4 * std::sqrt(dim), true);
  case DataPattern::HugeNegative: {
    if (Status status = setFirst(tensors.q, 0.1, 1, false); !status) return status;
    // Kept inside fp16's range, whatever the scale.
    const double key = scale != 0 ? std::clamp(-120 / scale, -3e4, 3e4) : 0;
    return setFirst(tensors.k, 0.1, key, false);
  }
  }
  return {};
}

struct PatternName {
  DataPattern pattern;
  std::string_view name;
};
constexpr PatternName kPatterns[] = {{DataPattern::Normal, "normal"},
                                     {DataPattern::OutlierChannels, "outliers"},
                                     {DataPattern::StrongFirstToken, "sink"},
                                     {DataPattern::AllEqual, "equal"},
                                     {DataPattern::HugeNegative, "negative"}};

} // namespace

uint64_t randomBits(uint64_t seed, uint64_t stream, uint64_t index) {
  constexpr uint64_t golden = 0x9e3779b97f4a7c15u; // 2^64 / golden ratio, SplitMix64's increment
  return mix(mix(mix(seed + golden) + (stream + 1) * golden) + (index + 1) * golden);
}

Status fillNormal(Tensor &tensor, uint64_t seed, uint64_t stream, double scale) {
  if (!tensor.valid()) return {};
  const TensorShape s = tensor.shape();
  return parallelFor(s.batch * s.rows, 0, [&](int64_t i) {
    const int64_t b = i / s.rows, row = i % s.rows;
    std::vector<double> values(static_cast<size_t>(s.dim));
    for (int64_t h = 0; h < s.heads; ++h) {
      const auto first = static_cast<uint64_t>(((b * s.heads + h) * s.rows + row) * s.dim);
      std::array<double, 2> pair{};
      for (uint64_t d = 0; d < values.size(); ++d) {
        const uint64_t index = first + d;
        if (d == 0 || index % 2 == 0) pair = normalPair(seed, stream, index / 2);
        values[d] = pair[index % 2] * scale;
      }
      tensor.setRow(b, h, row, values.data());
    }
  });
}

std::string_view toString(DataPattern pattern) {
  for (const PatternName &entry : kPatterns)
    if (entry.pattern == pattern) return entry.name;
  return "?";
}

Expected<DataPattern> parseDataPattern(std::string_view text) {
  std::string names;
  for (const PatternName &entry : kPatterns) {
    if (entry.name == text) return entry.pattern;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  }
  return fail(Stage::Input, fmt::format("data pattern: expected one of {}; found \"{}\"", names, text));
}

Expected<RandomTensors> randomTensors(const Problem &problem, uint64_t seed, DataPattern pattern) {
  const ElementType type = elementType(problem.dtype);
  RandomTensors tensors;
  struct Part {
    Tensor &tensor;
    TensorShape shape;
    const char *name;
  };
  const Part parts[] = {{tensors.q, shapeOfQ(problem), "q"},
                        {tensors.k, shapeOfK(problem), "k"},
                        {tensors.v, shapeOfV(problem), "v"},
                        {tensors.dO, shapeOfO(problem), "dO"}};
  uint64_t stream = 0;
  for (const Part &part : parts) {
    if (&part.tensor == &tensors.dO && problem.direction != Direction::Backward) break;
    auto tensor = Tensor::zeros(type, part.shape, problem.layout, part.name);
    if (!tensor) return propagate(tensor);
    part.tensor = std::move(*tensor);
    if (Status status = fillNormal(part.tensor, seed, stream++); !status) return propagate(status);
  }
  if (Status status = applyPattern(pattern, problem.effectiveScale(), tensors); !status) return propagate(status);
  return tensors;
}

} // namespace tilewright
