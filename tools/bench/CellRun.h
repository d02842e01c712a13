// One case on the GPU: device tensors of random values and the kernels that compute it, ready to be launched
// repeatedly.
#pragma once

#include "LaunchTimer.h"
#include "tilewright/Attention.h"

namespace tilewright::bench {

class CellRun {
public:
  /// Inputs are standard normal, layout as the problem's; for gradients the forward is run once, so that O and LSE are
  /// what a backward pass finds.
  static Expected<CellRun> make(std::shared_ptr<const cuda::Device> device, LaunchTimer &timer, Attention attention);

  /// Enqueues what is measured: the forward kernels, or for Direction::Backward the kernels of the gradients with the
  /// clearing of what they sum into.
  Status launch(void *stream);

  /// Schedules of the measured kernels in canonical text, "role: " before each where there are several.
  std::string schedule() const;

private:
  CellRun(std::shared_ptr<const cuda::Device> device, Attention attention)
      : device(std::move(device)), attention(std::move(attention)) {}
  Expected<void *> allocate(int64_t bytes);
  Direction direction() const { return attention.problem().direction; }

  std::shared_ptr<const cuda::Device> device;
  Attention attention;
  std::vector<cuda::DeviceMemory> memory;
  KernelArgs args;
};

} // namespace tilewright::bench
