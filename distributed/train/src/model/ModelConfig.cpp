#include "tilewright/train/ModelConfig.h"
#include "tilewright/tensor/Random.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace tilewright::train {
namespace {

struct Preset {
  std::string name;
  int64_t width, layers, heads, hidden, context;
};
const std::vector<Preset> kPresets = {
    {"tiny", 64, 2, 4, 192, 64}, {"small", 768, 12, 12, 3072, 512}, {"medium", 1024, 24, 16, 4096, 1024}};

/// Standard normal, cut at three: drawn again (with the next stream) until it lies inside, which 99.7 % do at once.
double cutNormal(uint64_t seed, uint64_t stream, uint64_t element) {
  for (uint64_t attempt = 0;; ++attempt) {
    const uint64_t index = element * 64 + attempt * 2;
    // 53 bits each; the first is never 0, whose logarithm is infinite.
    const double a = (static_cast<double>(randomBits(seed, stream, index) >> 11) + 1) * 0x1p-53;
    const double b = static_cast<double>(randomBits(seed, stream, index + 1) >> 11) * 0x1p-53;
    const double value = std::sqrt(-2 * std::log(a)) * std::cos(2 * M_PI * b);
    if (std::abs(value) <= 3 || attempt == 31) return std::min(3.0, std::max(-3.0, value));
  }
}

} // namespace

Expected<ModelConfig> ModelConfig::preset(std::string_view name) {
  for (const Preset &preset : kPresets)
    if (preset.name == name) {
      ModelConfig config;
      config.name = preset.name;
      config.width = preset.width;
      config.layers = preset.layers;
      config.heads = preset.heads;
      config.hidden = preset.hidden;
      config.context = preset.context;
      return config;
    }
  return fail(Stage::Input, fmt::format("model '{}': expected one of {}", name, fmt::join(presetNames(), ", ")));
}

const std::vector<std::string> &ModelConfig::presetNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Preset &preset : kPresets)
      all.push_back(preset.name);
    return all;
  }();
  return names;
}

Status ModelConfig::validate() const {
  struct Field {
    const char *name;
    int64_t value, most;
  };
  // A token is an int32, and a row of any matrix is far from the limits of 32-bit BLAS.
  const Field fields[] = {{"vocabulary", vocabulary, 1 << 24}, {"context", context, 1 << 20},
                          {"width", width, 1 << 16},           {"layers", layers, 1 << 12},
                          {"heads", heads, 1 << 12},           {"hidden", hidden, 1 << 18}};
  for (const Field &field : fields)
    if (field.value < 1 || field.value > field.most)
      return fail(Stage::Input,
                  fmt::format("model: {}: expected 1 to {}, found {}", field.name, field.most, field.value));
  if (width % heads || headDim() % 2)
    return fail(Stage::Input,
                fmt::format("model: {} heads do not cut a width of {} into heads of an even size", heads, width),
                "rotary positions turn pairs of columns: width must be a multiple of 2 * heads");
  if (headDim() > kMaxHeadDim)
    return fail(Stage::Input, fmt::format("model: head dim {} (width {} over {} heads) exceeds {}", headDim(), width,
                                          heads, kMaxHeadDim));
  if (!(ropeBase > 1))
    return fail(Stage::Input, fmt::format("model: rope base: expected more than 1, found {}", ropeBase));
  if (!(normEpsilon > 0))
    return fail(Stage::Input, fmt::format("model: norm epsilon: expected more than 0, found {}", normEpsilon));
  return {};
}

dist::ParameterList ModelConfig::parameters(double weightDecay) const {
  dist::ParameterList list;
  auto matrix = [&](std::string name, int64_t rows, int64_t columns) {
    list.push_back({std::move(name), {rows, columns}, weightDecay});
  };
  auto norm = [&](std::string name) { list.push_back({std::move(name), {width}, 0}); };
  matrix("embedding", vocabulary, width);
  for (int64_t l = 0; l < layers; ++l) {
    const std::string layer = fmt::format("layers.{}.", l);
    norm(layer + "attention_norm");
    for (const char *name : {"q", "k", "v", "o"})
      matrix(layer + name, width, width);
    norm(layer + "mlp_norm");
    matrix(layer + "gate", hidden, width);
    matrix(layer + "up", hidden, width);
    matrix(layer + "down", width, hidden);
  }
  norm("norm");
  matrix("head", vocabulary, width);
  return list;
}

int64_t ModelConfig::parameterCount() const {
  return 2 * vocabulary * width + layers * (4 * width * width + 3 * width * hidden + 2 * width) + width;
}

double ModelConfig::flopsPerToken(int64_t length) const {
  return 6 * static_cast<double>(parameterCount() - vocabulary * width) +
         6 * static_cast<double>(layers) * static_cast<double>(width) * static_cast<double>(length);
}

std::string ModelConfig::json() const {
  return nlohmann::json{{"name", name},     {"vocabulary", vocabulary}, {"context", context},
                        {"width", width},   {"layers", layers},         {"heads", heads},
                        {"hidden", hidden}, {"rope_base", ropeBase},    {"norm_epsilon", normEpsilon}}
      .dump();
}

Expected<ModelConfig> ModelConfig::fromJson(const std::string &text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object())
    return fail(Stage::Input, fmt::format("model: expected a JSON object, found '{}'", text.substr(0, 80)));
  ModelConfig config;
  size_t found = 0;
  Status status;
  auto read = [&](const char *key, auto &value) {
    const auto at = json.find(key);
    if (at == json.end() ||
        (std::is_same_v<std::decay_t<decltype(value)>, std::string> ? !at->is_string() : !at->is_number())) {
      status = fail(Stage::Input, fmt::format("model: {} is missing or has another type", key));
      return;
    }
    value = at->get<std::decay_t<decltype(value)>>();
    ++found;
  };
  read("name", config.name);
  read("vocabulary", config.vocabulary);
  read("context", config.context);
  read("width", config.width);
  read("layers", config.layers);
  read("heads", config.heads);
  read("hidden", config.hidden);
  read("rope_base", config.ropeBase);
  read("norm_epsilon", config.normEpsilon);
  if (!status) return propagate(status);
  if (json.size() != found) return fail(Stage::Input, fmt::format("model: {} fields; expected {}", json.size(), found));
  if (status = config.validate(); !status) return propagate(status);
  return config;
}

void fillInitial(const ModelConfig &config, uint64_t seed, int parameter, std::span<float> values) {
  const std::vector<int64_t> shape = config.parameters()[static_cast<size_t>(parameter)].shape;
  if (shape.size() == 1) return std::fill(values.begin(), values.end(), 1.0f);
  const double deviation = parameter == 0 ? 1 : std::sqrt(2 / static_cast<double>(shape[0] + shape[1]));
  for (size_t e = 0; e < values.size(); ++e)
    values[e] = static_cast<float>(deviation * cutNormal(seed, static_cast<uint64_t>(parameter), e));
}

} // namespace tilewright::train
