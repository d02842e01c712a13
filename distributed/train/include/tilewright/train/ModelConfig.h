// The trainer's model as a plain value: a decoder-only transformer with RMSNorm before each half-layer (Zhang and
// Sennrich, arXiv 1910.07467), rotary positions (Su et al., arXiv 2104.09864), SwiGLU (Shazeer, arXiv 2002.05202), an
// untied head and no biases. Linear weights are (out, in): y = x W^T.
#pragma once

#include "tilewright/distributed/plan/Strategy.h"
#include <span>

namespace tilewright::train {

struct ModelConfig {
  std::string name = "custom";
  int64_t vocabulary = 10000;
  int64_t context = 512; ///< Longest sequence, in tokens.
  int64_t width = 64, layers = 2, heads = 4, hidden = 192;
  double ropeBase = 10000, normEpsilon = 1e-5;

  bool operator==(const ModelConfig &) const = default;

  /// "tiny", "small" or "medium"; the error lists them.
  static Expected<ModelConfig> preset(std::string_view name);
  static const std::vector<std::string> &presetNames();

  int64_t headDim() const { return width / heads; }
  /// The error names the field, its value and what is accepted.
  Status validate() const;

  /// In the order in which forward uses them (ParameterIndex). `weightDecay` applies to matrices, not to norms.
  dist::ParameterList parameters(double weightDecay = 0) const;
  int64_t parameterCount() const;

  /// Floating-point operations of forward and backward a token: 6 a parameter but for the input embedding's, which is
  /// only looked up, and 6 * layers * width * length for causal attention's products.
  double flopsPerToken(int64_t length) const;

  /// One JSON object of all fields, and back: unknown or missing fields and wrong types are errors that name them.
  std::string json() const;
  static Expected<ModelConfig> fromJson(const std::string &text);
};

/// Where each parameter stands in ModelConfig::parameters().
struct ParameterIndex {
  enum Of { AttentionNorm, Q, K, V, O, MlpNorm, Gate, Up, Down, PerLayer };
  int64_t layers = 0;

  int embedding() const { return 0; }
  int layer(int64_t l, Of which) const { return static_cast<int>(1 + l * PerLayer + which); }
  int norm() const { return static_cast<int>(1 + layers * PerLayer); }
  int head() const { return norm() + 1; }
  int count() const { return head() + 1; }
};

/// What training starts with, a pure function of (seed, parameter, element): matrices normal with variance
/// 2 / (in + out), the embedding standard normal, both cut at three standard deviations; norms 1. `values` has the
/// parameter's elements.
void fillInitial(const ModelConfig &config, uint64_t seed, int parameter, std::span<float> values);

} // namespace tilewright::train
