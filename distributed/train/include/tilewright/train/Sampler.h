// Text from a trained model: parameters of a checkpoint, and the choice of the next token.
#pragma once

#include "tilewright/train/Transformer.h"
#include <functional>

namespace tilewright::train {

/// A checkpoint's parameters in a backend's memory, without an engine.
class CheckpointParameters final : public ParameterHost {
public:
  /// `path` is a step's folder or a folder of them, of which the newest is taken. Errors name file and field.
  static Expected<std::unique_ptr<CheckpointParameters>> load(const std::string &path, Backend &backend);

  const ModelConfig &model() const { return config; }
  const std::string &path() const { return folder; }
  int64_t step() const { return updates; }

  Status wait(int) override { return {}; }
  dist::Operand value(int i) override { return values[static_cast<size_t>(i)]; }
  dist::GradientView gradient(int) override { return {}; }
  Status ready(int) override { return {}; }

private:
  ModelConfig config;
  std::string folder;
  int64_t updates = 0;
  std::vector<dist::Operand> values;
};

struct SampleOptions {
  int64_t tokens = 200;
  double temperature = 0.8; ///< 0: always the likeliest token.
  int64_t topK = 50;        ///< Choose among so many; 0: among all.
  uint64_t seed = 1;
};

/// The token that `logits` and 64 random bits choose. Logits that are all not finite are an error.
Expected<int32_t> chooseToken(std::span<const float> logits, const SampleOptions &options, uint64_t random);

/// Continues `prompt` (at least one token) and hands each new token to `next`, which ends it early by returning false.
/// Beyond the model's context it goes on from the last half of it.
Status sample(Transformer &model, ParameterHost &parameters, std::vector<int32_t> prompt, const SampleOptions &options,
              const std::function<bool(int32_t)> &next);

} // namespace tilewright::train
