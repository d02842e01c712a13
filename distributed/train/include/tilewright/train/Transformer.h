// The model's forward and backward pass over a backend. It owns activations; parameters and gradients are a host's.
#pragma once

#include "tilewright/distributed/engine/Engine.h"
#include "tilewright/train/Backend.h"
#include "tilewright/train/ModelConfig.h"
#include <span>

namespace tilewright::train {

/// Whose parameters are used and where gradients go: an Engine (EngineParameters), or a program's own arrays. i counts
/// as ModelConfig::parameters() does.
class ParameterHost {
public:
  virtual ~ParameterHost() = default;
  /// Called before the first use of parameter i in a pass.
  virtual Status wait(int i) = 0;
  virtual dist::Operand value(int i) = 0;
  virtual dist::GradientView gradient(int i) = 0;
  /// The gradient of this pass is complete; called in the reverse order of parameters().
  virtual Status ready(int i) = 0;
};

class EngineParameters final : public ParameterHost {
public:
  explicit EngineParameters(dist::Engine &engine) : engine(engine) {}
  Status wait(int i) override { return engine.waitParameter(i); }
  dist::Operand value(int i) override { return engine.parameter(i); }
  dist::GradientView gradient(int i) override { return engine.gradient(i); }
  Status ready(int i) override { return engine.gradReady(i); }

private:
  dist::Engine &engine;
};

/// `sequences` sequences of `length` tokens one after another. A target below zero is not counted.
struct Batch {
  std::span<const int32_t> tokens, targets;
  int64_t sequences = 0, length = 0;
};

/// A piece of memory that a Transformer keeps.
struct ActivationBuffer {
  std::string name;
  int64_t bytes = 0;
};

/// One thread at a time.
class Transformer {
public:
  /// Room for `sequences` sequences of config.context tokens. Without `training` only what forward needs. `backend`
  /// must outlive it.
  static Expected<std::unique_ptr<Transformer>> create(const ModelConfig &config, Backend &backend, int64_t sequences,
                                                       bool training);
  ~Transformer();

  /// What create() allocates.
  static std::vector<ActivationBuffer> activations(const ModelConfig &config, int64_t sequences, bool training,
                                                   ElementType type, int64_t headRows);
  static int64_t activationBytes(const ModelConfig &config, int64_t sequences, bool training, const Backend &backend);

  const ModelConfig &config() const;
  /// What create() has asked the backend for: activationBytes(), if that is right.
  int64_t allocatedBytes() const;

  /// The sum of the targets' cross-entropies, in nats.
  Expected<double> loss(const Batch &batch, ParameterHost &host);
  /// loss(), and its gradients with respect to every parameter. Needs `training`.
  Expected<double> lossAndGradients(const Batch &batch, ParameterHost &host);
  /// Logits of what follows the last of `tokens`, which stand at positions start, start + 1, ... of one sequence whose
  /// earlier tokens went through earlier calls: their keys and values are still here.
  Expected<std::vector<float>> next(std::span<const int32_t> tokens, int64_t start, ParameterHost &host);

private:
  struct State;
  explicit Transformer(std::unique_ptr<State> state);
  std::unique_ptr<State> state;
};

} // namespace tilewright::train
