// The model on a GPU: cuBLASLt for matrix products, Tilewright's kernels for everything else. Calls are enqueued on one
// stream. Sums of a layer are taken in an order that sizes alone decide: the same data give the same bits.
#pragma once

#include "tilewright/Context.h"
#include "tilewright/train/Backend.h"

namespace tilewright::train {

struct GpuOptions {
  int device = 0; ///< CUDA ordinal.
  /// Of activations. BF16 takes parameters of that type as they are and converts fp32 ones as it uses them.
  ElementType type = ElementType::BF16;
  bool tf32 = false; ///< fp32 products may round their operands to TF32.
  /// How attention's gradients are computed; Fused is faster and adds dQ up in an order that varies from run to run.
  Backward attention = Backward::TwoKernel;
};

class GpuBackend : public Backend {
public:
  /// `context` finds or compiles the kernels and must outlive the backend. Errors say which library is missing and how
  /// to get it.
  static Expected<std::unique_ptr<GpuBackend>> create(std::shared_ptr<Context> context, const GpuOptions &options);

  /// The CUstream of all calls: an engine's CudaDevice takes it as its host stream.
  virtual void *stream() const = 0;
  virtual const std::shared_ptr<const cuda::Device> &gpu() const = 0;
};

} // namespace tilewright::train
