// What a Transformer keeps between forward and backward: where each piece is, and how much it is.
#pragma once

#include "tilewright/train/Transformer.h"
#include <functional>

namespace tilewright::train {

/// Queries, keys and values of a token stand beside each other, as do gate and up; which order suits the parameters'
/// order in memory (Transformer.cpp).
struct LayerActivations {
  Matrix attentionInput; ///< The residual stream before attention: what attention_norm normalises.
  Matrix attentionNorm;  ///< attention_norm's result.
  Matrix qkv;            ///< width * 3 columns, rotated.
  Matrix attended;
  Matrix mlpInput, mlpNorm;
  Matrix gateUp;                                            ///< hidden * 2 columns.
  Matrix mlp;                                               ///< swiglu's result.
  float *attentionInverse = nullptr, *mlpInverse = nullptr; ///< 1 / rms by row.
  float *lse = nullptr, *lseRest = nullptr;
};

struct Activations {
  std::vector<LayerActivations> layers;
  Matrix output, outputNorm; ///< The residual stream behind the last layer, and norm's result.
  float *outputInverse = nullptr;
  Matrix delta; ///< What a half-layer adds to the stream.
  Matrix logits;
  int32_t *tokens = nullptr, *targets = nullptr;
  float *cosines = nullptr, *sines = nullptr;
  double *loss = nullptr;

  // Of the backward pass.
  Matrix dStream, dNorm, dAttended, dQkv, dGateUp, dMlp;
  float *attentionDelta = nullptr;

  /// Calls place(name, bytes), which returns memory, for every piece.
  using Place = std::function<Expected<void *>(const std::string &name, int64_t bytes)>;
  static Expected<Activations> make(const ModelConfig &config, int64_t sequences, bool training, ElementType type,
                                    int64_t headRows, const Place &place);
};

} // namespace tilewright::train
