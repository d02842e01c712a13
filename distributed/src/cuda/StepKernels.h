// The step's CUDA kernels (templates/step/Optimizer.cuh), compiled and loaded for one device, with the arguments they
// take.
#pragma once

#include "tilewright/cuda/Module.h"
#include "tilewright/cuda/Nvrtc.h"
#include "tilewright/tensor/ElementType.h"
#include <map>

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

class StepKernels {
public:
  static Expected<StepKernels> load(const std::shared_ptr<const cuda::Device> &device, const cuda::Nvrtc &compiler);
  /// The cubin alone, for any architecture: needs no GPU.
  static Expected<cuda::NvrtcResult> compile(const cuda::Nvrtc &compiler, const std::string &architecture);

  /// `symbol` is one of the template's kernels; argument types go with it.
  template <class Args> Status launch(const char *symbol, void *stream, int64_t blocks, const Args &args) const {
    return modules.at(symbol)->launch(stream, static_cast<unsigned>(blocks), &args);
  }

private:
  std::map<std::string, std::unique_ptr<cuda::Module>, std::less<>> modules;
};

} // namespace tilewright::dist
