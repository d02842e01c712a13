// One case on the GPU: device tensors of random values and the kernels that compute it, ready to be launched
// repeatedly.
#pragma once

#include "LaunchTimer.h"

namespace tilewright::bench {

class CellRun {
public:
  /// `kernels` compute the problem, in launch order, forward first. Inputs are standard normal, layout as the
  /// problem's; for gradients the forward is run once, so that O and LSE are what a backward pass finds.
  static Expected<CellRun> make(std::shared_ptr<const cuda::Device> device, LaunchTimer &timer, const Problem &problem,
                                std::vector<Kernel> kernels);

  /// Enqueues what is measured: the forward kernels, or for Direction::Backward the kernels of the gradients with the
  /// clearing of what they sum into.
  Status launch(void *stream);

  /// Schedules of the measured kernels in canonical text, "role: " before each where there are several.
  std::string schedule() const;

private:
  Expected<void *> allocate(int64_t bytes);
  Status launchPart(void *stream, bool forward);

  std::shared_ptr<const cuda::Device> device;
  bool backward = false;
  std::vector<Kernel> kernels;
  std::vector<cuda::DeviceMemory> memory;
  cuda::DeviceMemory sums; ///< KernelArgs::dqSums
  KernelArgs args;
};

} // namespace tilewright::bench
