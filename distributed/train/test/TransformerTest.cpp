#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "PlainParameters.h"
#include "ReferenceModel.h"
#include "tilewright/Compiler.h"
#include "tilewright/train/CpuBackend.h"
#include <algorithm>
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::train;

namespace {

ModelConfig microModel() {
  ModelConfig config;
  config.vocabulary = 11;
  config.context = 7;
  config.width = 12;
  config.heads = 2;
  config.layers = 2;
  config.hidden = 20;
  return config;
}

struct Machine {
  Compiler compiler;
  std::shared_ptr<Context> context;
  ThreadPool pool{2};
  std::unique_ptr<Backend> backend;

  Machine() {
    ContextOptions options;
    options.generator = &compiler;
    options.hostCompiler = Compiler::hostCompiler();
    options.cacheDir = "";
    auto made = Context::create(options);
    REQUIRE_MESSAGE(made, made.error().text());
    context = *made;
    auto cpu = cpuBackend(context, pool);
    REQUIRE_MESSAGE(cpu, cpu.error().text());
    backend = std::move(*cpu);
  }
  static Machine &get() {
    static Machine machine;
    return machine;
  }
};

struct Sample {
  std::vector<int32_t> tokens, targets;
  Batch batch(int64_t sequences, int64_t length) const { return {tokens, targets, sequences, length}; }
};

Sample sample(const ModelConfig &config, int64_t sequences, int64_t length, uint32_t seed) {
  Sample s;
  for (int64_t i = 0; i < sequences * length; ++i) {
    seed = seed * 1664525 + 1013904223;
    s.tokens.push_back(static_cast<int32_t>(seed >> 8) % static_cast<int32_t>(config.vocabulary));
    seed = seed * 1664525 + 1013904223;
    // Every fifth target does not count.
    s.targets.push_back(i % 5 == 3 ? -1 : static_cast<int32_t>(seed >> 8) % static_cast<int32_t>(config.vocabulary));
  }
  return s;
}

void initialise(PlainParameters &host, const ModelConfig &config) {
  for (int i = 0; i < host.count(); ++i) {
    std::vector<float> values(static_cast<size_t>(host.elements(i)));
    fillInitial(config, 7, i, values);
    for (size_t e = 0; e < values.size(); ++e) // norms away from 1 too
      host.set(i, static_cast<int64_t>(e), values[e] * (1 + 0.1 * std::sin(static_cast<double>(e + 1))));
  }
}

reference::Parameters inDouble(PlainParameters &host) {
  reference::Parameters p;
  for (int i = 0; i < host.count(); ++i) {
    p.emplace_back();
    for (int64_t e = 0; e < host.elements(i); ++e)
      p.back().push_back(host.get(i, e));
  }
  return p;
}

/// Central differences of the double reference, every element.
reference::Parameters differences(const ModelConfig &config, reference::Parameters p, const Batch &batch) {
  reference::Parameters gradients = p;
  for (size_t i = 0; i < p.size(); ++i)
    for (size_t e = 0; e < p[i].size(); ++e) {
      const double value = p[i][e], step = 1e-5;
      p[i][e] = value + step;
      const double above = reference::loss(config, p, batch);
      p[i][e] = value - step;
      gradients[i][e] = (above - reference::loss(config, p, batch)) / (2 * step);
      p[i][e] = value;
    }
  return gradients;
}

/// Largest difference of a parameter's gradient, relative to its largest element, over all parameters.
double worstError(PlainParameters &host, const reference::Parameters &expected, double times = 1) {
  double worst = 0;
  for (int i = 0; i < host.count(); ++i) {
    double error = 0, largest = 0;
    for (int64_t e = 0; e < host.elements(i); ++e) {
      const double wanted = times * expected[static_cast<size_t>(i)][static_cast<size_t>(e)];
      // A NaN must not pass for a small error.
      const double difference = std::abs(host.gradientAt(i, e) - wanted);
      error = difference <= error ? error : difference;
      largest = std::max(largest, std::abs(wanted));
    }
    CAPTURE(i);
    CHECK(largest > 0);
    CHECK(error == error);
    worst = std::max(worst, error / largest);
  }
  return worst;
}

std::unique_ptr<Transformer> make(const ModelConfig &config, int64_t sequences, bool training = true) {
  auto model = Transformer::create(config, *Machine::get().backend, sequences, training);
  REQUIRE_MESSAGE(model, model.error().text());
  return std::move(*model);
}

} // namespace

TEST_CASE("presets have the parameters that their sizes give") {
  auto small = ModelConfig::preset("small"), medium = ModelConfig::preset("medium"), tiny = ModelConfig::preset("tiny");
  REQUIRE(small);
  REQUIRE(medium);
  REQUIRE(tiny);
  CHECK(small->parameterCount() == 128'625'408);
  CHECK(small->parameters().size() == 111);
  CHECK(medium->parameterCount() == 423'183'360);
  CHECK(medium->parameters().size() == 219);
  for (const ModelConfig &config : {*tiny, *small, *medium}) {
    int64_t count = 0;
    for (const dist::ParameterSpec &parameter : config.parameters())
      count += parameter.shape.size() == 1 ? parameter.shape[0] : parameter.shape[0] * parameter.shape[1];
    CHECK(count == config.parameterCount());
    CHECK(static_cast<int>(config.parameters().size()) == ParameterIndex{config.layers}.count());
    CHECK(config.validate());
  }
  // 3.09 TFLOP a step of 8 x 512 tokens.
  CHECK(small->flopsPerToken(512) * 8 * 512 == doctest::Approx(3.09e12).epsilon(0.002));
  auto unknown = ModelConfig::preset("huge");
  REQUIRE(!unknown);
  CHECK(unknown.error().text().find("tiny, small, medium") != std::string::npos);
}

TEST_CASE("models that cannot be are refused") {
  ModelConfig config;
  config.heads = 5;
  CHECK(!config.validate());
  config = {};
  config.heads = 64; // heads of one column have no pairs to turn
  CHECK(!config.validate());
  config = {};
  config.layers = 0;
  CHECK(!config.validate());
}

TEST_CASE("losses and gradients of every parameter are those of a double reference by finite differences") {
  const ModelConfig config = microModel();
  for (int64_t length : {config.context, int64_t{3}, int64_t{1}})
    for (bool apart : {false, true}) {
      CAPTURE(length);
      CAPTURE(apart);
      PlainParameters host(config, ElementType::F32, ElementType::F32, apart);
      initialise(host, config);
      auto model = make(config, 3);
      const Sample data = sample(config, 3, length, 5);
      const Batch batch = data.batch(3, length);
      auto loss = model->lossAndGradients(batch, host);
      REQUIRE_MESSAGE(loss, loss.error().text());
      const reference::Parameters p = inDouble(host);
      CHECK(*loss == doctest::Approx(reference::loss(config, p, batch)).epsilon(1e-6));
      const reference::Parameters expected = differences(config, p, batch);
      if (length > 1) { // alone, a token attends to itself whatever q and k are
        CHECK(worstError(host, expected) < 5e-6);
        // A second pass adds.
        REQUIRE(model->lossAndGradients(batch, host));
        CHECK(worstError(host, expected, 2) < 5e-6);
      }
      auto again = model->loss(batch, host);
      REQUIRE(again);
      CHECK(*again == doctest::Approx(*loss).epsilon(1e-7));
    }
}

TEST_CASE("parameters are waited for in order before their use, and gradients come in reverse") {
  const ModelConfig config = microModel();
  PlainParameters host(config);
  initialise(host, config);
  auto model = make(config, 1);
  const Sample data = sample(config, 1, 7, 1);
  REQUIRE(model->lossAndGradients(data.batch(1, 7), host));
  std::vector<int> order(static_cast<size_t>(host.count()));
  for (int i = 0; i < host.count(); ++i)
    order[static_cast<size_t>(i)] = i;
  CHECK(host.waited == order);
  std::reverse(order.begin(), order.end());
  CHECK(host.readied == order);
}

TEST_CASE("bf16 parameters and gradients: the same model at the rounded parameters") {
  const ModelConfig config = microModel();
  PlainParameters host(config, ElementType::BF16, ElementType::BF16);
  initialise(host, config);
  auto model = make(config, 2);
  const Sample data = sample(config, 2, 7, 9);
  const Batch batch = data.batch(2, 7);
  auto loss = model->lossAndGradients(batch, host);
  REQUIRE(loss);
  const reference::Parameters p = inDouble(host);
  CHECK(*loss == doctest::Approx(reference::loss(config, p, batch)).epsilon(1e-6));
  CHECK(worstError(host, differences(config, p, batch)) < 0x1p-8); // a gradient's own rounding
}

TEST_CASE("decoding token by token gives the logits of the whole sequence") {
  const ModelConfig config = microModel();
  PlainParameters host(config);
  initialise(host, config);
  const Sample data = sample(config, 1, 7, 3);
  const reference::Rows expected = reference::logits(config, inDouble(host), data.tokens);
  auto model = make(config, 1, false);
  const std::span<const int32_t> tokens = data.tokens;
  for (auto [begin, count] : {std::pair<size_t, size_t>{0, 3}, {3, 1}, {4, 1}, {5, 2}}) {
    auto logits = model->next(tokens.subspan(begin, count), static_cast<int64_t>(begin), host);
    REQUIRE_MESSAGE(logits, logits.error().text());
    for (size_t i = 0; i < logits->size(); ++i)
      CHECK((*logits)[i] == doctest::Approx(expected[begin + count - 1][i]).epsilon(1e-4));
  }
  CHECK(!model->next(tokens.subspan(0, 1), 7, host));
  CHECK(!model->lossAndGradients(data.batch(1, 7), host));
}

TEST_CASE("batches that do not fit, and tokens outside the vocabulary, are refused") {
  const ModelConfig config = microModel();
  PlainParameters host(config);
  initialise(host, config);
  auto model = make(config, 2);
  Sample data = sample(config, 2, 7, 3);
  CHECK(!model->loss(data.batch(1, 7), host)); // counts disagree
  CHECK(!model->loss(data.batch(2, 8), host));
  data.tokens[9] = 11;
  auto refused = model->loss(data.batch(2, 7), host);
  REQUIRE(!refused);
  CHECK(refused.error().text().find("vocabulary is 11") != std::string::npos);
  data.tokens[9] = 0;
  data.targets[2] = 11;
  CHECK(!model->loss(data.batch(2, 7), host));
}

TEST_CASE("a NaN among the parameters reaches the loss") {
  const ModelConfig config = microModel();
  for (int i : {0, ParameterIndex{config.layers}.layer(1, ParameterIndex::Up), ParameterIndex{config.layers}.head()}) {
    PlainParameters host(config);
    initialise(host, config);
    const Sample data = sample(config, 2, 7, 3);
    host.set(i, data.tokens[0] * config.width, NAN);
    auto loss = make(config, 2)->loss(data.batch(2, 7), host);
    REQUIRE(loss);
    CHECK(std::isnan(*loss));
  }
}

TEST_CASE("initial values are a pure function of seed, parameter and element, with the promised spread") {
  const ModelConfig config = *ModelConfig::preset("tiny");
  std::vector<float> a(static_cast<size_t>(64 * 64)), b(a.size()), other(a.size());
  const int q = ParameterIndex{config.layers}.layer(0, ParameterIndex::Q);
  fillInitial(config, 1, q, a);
  fillInitial(config, 1, q, b);
  fillInitial(config, 2, q, other);
  CHECK(a == b);
  CHECK(a != other);
  double squares = 0, largest = 0;
  for (float value : a) {
    squares += value * value;
    largest = std::max<double>(largest, std::abs(value));
  }
  CHECK(std::sqrt(squares / static_cast<double>(a.size())) == doctest::Approx(std::sqrt(2.0 / 128)).epsilon(0.05));
  CHECK(largest <= 3 * std::sqrt(2.0 / 128) * 1.0001);
}
