// The step's CUDA kernels (templates/step/Optimizer.cuh) with the arguments they take.
#pragma once

#include "tilewright/CudaSource.h"

namespace tilewright::dist {

// These mirror the structs of the same names in templates/step/Optimizer.cuh.
struct ConvertArgs {
  const void *from;
  void *to;
  int64_t count;
};
struct NormArgs {
  const void *from;
  double *partial;
  int64_t shardElements;
};
struct NormSumArgs {
  const double *partial;
  double *slots;
  int32_t firstShard, shards, worldSize;
};
struct ScaleArgs {
  const double *scalars;
  double *result;
  int64_t count;
  double maxNorm;
  int32_t keepIfNotFinite;
};
struct AdamWArgs {
  const void *gradient;
  const double *scale;
  void *parameter;
  float *m, *v, *master;
  int64_t count;
  const void *ranges; ///< DecayRange, as in ComputeDevice.h
  int32_t rangeCount;
  float beta1, beta2, step, rootCorrection, epsilon;
  double learningRate;
};

/// As in the template.
constexpr int kNormBlocks = 128, kStepThreads = 256, kTileElements = 1024;

/// The template with all its kernels, for a Context to prepare.
const CudaSource &stepKernels();

} // namespace tilewright::dist
