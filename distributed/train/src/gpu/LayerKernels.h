// The layers' CUDA kernels (templates/train/Layers.cuh) with the arguments they take.
#pragma once

#include "tilewright/CudaSource.h"
#include "tilewright/train/Matrix.h"

namespace tilewright::train {

// These mirror the structs of the same names in templates/train/.
struct RowsRef {
  void *data = nullptr;
  int64_t stride = 0;
};
struct ConvertRowsArgs {
  RowsRef from, to;
  int64_t rows;
  int32_t columns, add;
};
struct RowNormArgs {
  RowsRef x, addend, sum, y;
  const void *weight;
  float *inverse;
  int64_t rows;
  int32_t columns;
  float epsilon;
};
struct RowNormGradientArgs {
  RowsRef dY, x, dX;
  const void *weight;
  const float *inverse;
  int64_t rows;
  int32_t columns, add;
};
struct NormWeightArgs {
  RowsRef dY, x;
  const float *inverse;
  float *partial;
  int64_t rows;
  int32_t columns, chunkRows;
};
struct NormWeightSumArgs {
  const float *partial;
  void *dWeight;
  int32_t columns, chunks, add;
};
struct RotaryArgs {
  RowsRef x;
  const float *cosines, *sines;
  int64_t rows;
  int32_t columns, headDim, length, start;
  float sign;
};
struct GateArgs {
  RowsRef gate, up, y;
  int64_t rows;
  int32_t columns;
};
struct GateGradientArgs {
  RowsRef gate, up, dY, dGate, dUp;
  int64_t rows;
  int32_t columns;
};
struct CrossEntropyArgs {
  RowsRef logits;
  const int32_t *targets;
  float *losses;
  int32_t columns, gradient;
};
struct LossArgs {
  const float *losses;
  double *loss;
  int64_t rows;
};
struct EmbeddingArgs {
  const int32_t *tokens;
  RowsRef table, y;
  int64_t rows;
  int32_t columns, vocabulary;
};
struct EmbeddingGradientArgs {
  const int32_t *tokens;
  RowsRef dY, dTable;
  int64_t rows;
  int32_t columns, vocabulary, perBlock, add;
};

/// As in the templates.
constexpr int kLayerThreads = 256, kRowsABlock = kLayerThreads / 32, kUnit = 8, kTileColumns = 32 * kUnit;

/// The templates with all their kernels, for a Context to prepare.
const CudaSource &layerKernels();

} // namespace tilewright::train
