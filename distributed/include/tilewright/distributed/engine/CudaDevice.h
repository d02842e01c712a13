// A GPU as an engine's device: lanes are streams, ops leave events, kernels come from a Context when the device is made.
#pragma once

#include "tilewright/Context.h"
#include "tilewright/distributed/engine/ComputeDevice.h"

namespace tilewright::dist {

/// Calls return when work is enqueued. The host's lane is the stream on which the host's own kernels run: what they
/// write is what reductions behind gradReady() read, and nothing of the CPU waits for it.
class CudaDevice : public ComputeDevice {
public:
  /// `ordinal`: of the GPU. `hostStream`: a CUstream of the device, which must outlive it; null makes one of its own.
  static Expected<std::unique_ptr<CudaDevice>> create(Context &context, int ordinal, void *hostStream = nullptr);

  virtual void *stream(Lane lane) const = 0;
  virtual const std::shared_ptr<const cuda::Device> &gpu() const = 0;
};

} // namespace tilewright::dist
