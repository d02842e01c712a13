#include "Activations.h"
#include <fmt/format.h>

namespace tilewright::train {

Expected<Activations> Activations::make(const ModelConfig &config, int64_t sequences, bool training, ElementType type,
                                        int64_t headRows, const Place &place) {
  Activations a;
  Status status;
  const int64_t rows = sequences * config.context, width = config.width;
  auto raw = [&](const std::string &name, int64_t bytes) -> void * {
    if (!status) return nullptr;
    Expected<void *> memory = place(name, bytes);
    if (!memory) status = propagate(memory);
    return memory ? *memory : nullptr;
  };
  auto matrix = [&](const std::string &name, int64_t columns) {
    return Matrix::of(raw(name, rows * columns * sizeInBytes(type)), rows, columns, type);
  };
  auto floats = [&](const std::string &name, int64_t count) { return static_cast<float *>(raw(name, count * 4)); };

  for (int64_t l = 0; l < config.layers; ++l) {
    const std::string layer = fmt::format("layers.{}.", l);
    LayerActivations own;
    // Without a backward pass nothing outlives its layer, but for keys and values: decoding goes on from them.
    if (l > 0 && !training) own = a.layers[0];
    own.qkv = matrix(layer + "qkv", 3 * width);
    if (l == 0 || training) {
      own.attentionInput = matrix(layer + "attention_input", width);
      own.attentionNorm = matrix(layer + "attention_norm", width);
      own.attended = matrix(layer + "attended", width);
      own.mlpInput = matrix(layer + "mlp_input", width);
      own.mlpNorm = matrix(layer + "mlp_norm", width);
      own.gateUp = matrix(layer + "gate_up", 2 * config.hidden);
      own.mlp = matrix(layer + "mlp", config.hidden);
      own.attentionInverse = floats(layer + "attention_inverse", rows);
      own.mlpInverse = floats(layer + "mlp_inverse", rows);
      own.lse = floats(layer + "lse", rows * config.heads);
      own.lseRest = floats(layer + "lse_rest", rows * config.heads);
    }
    a.layers.push_back(own);
  }
  a.output = matrix("output", width);
  a.outputNorm = matrix("output_norm", width);
  a.outputInverse = floats("output_inverse", rows);
  a.delta = matrix("delta", width);
  const int64_t some = std::min(rows, headRows);
  a.logits = Matrix::of(raw("logits", some * config.vocabulary * sizeInBytes(type)), some, config.vocabulary, type);
  a.tokens = static_cast<int32_t *>(raw("tokens", rows * 4));
  a.targets = static_cast<int32_t *>(raw("targets", rows * 4));
  a.cosines = floats("cosines", config.context * config.headDim() / 2);
  a.sines = floats("sines", config.context * config.headDim() / 2);
  a.loss = static_cast<double *>(raw("loss", 8));
  if (training) {
    a.dStream = matrix("d_stream", width);
    a.dNorm = matrix("d_norm", width);
    a.dAttended = matrix("d_attended", width);
    a.dQkv = matrix("d_qkv", 3 * width);
    a.dGateUp = matrix("d_gate_up", 2 * config.hidden);
    a.dMlp = matrix("d_mlp", config.hidden);
    a.attentionDelta = floats("attention_delta", rows * config.heads);
  }
  if (!status) return propagate(status);
  return a;
}

} // namespace tilewright::train
