// Device copies of host tensors and tables, and device memory for results, that live as long as one object.
#pragma once

#include "tilewright/KernelArgs.h"
#include "tilewright/cuda/DeviceMemory.h"
#include "tilewright/tensor/Table.h"
#include "tilewright/tensor/Tensor.h"
#include <vector>

namespace tilewright::bench {

class DeviceBuffers {
public:
  explicit DeviceBuffers(std::shared_ptr<const cuda::Device> device) : device(std::move(device)) {}

  /// Memory of its own for a host tensor; the view keeps the host's strides. A tensor that is not valid gives none.
  Expected<TensorRef> upload(const Tensor &tensor);
  Expected<TableRef> upload(const Table &table);
  Expected<void *> upload(const void *data, int64_t bytes);

  /// At least 16 bytes: a kernel may be handed an empty tensor, never a null one.
  Expected<void *> allocate(int64_t bytes);
  /// Filled with NaN patterns, so that what a kernel fails to write does not pass for a result.
  Expected<void *> poisoned(int64_t bytes);
  /// The buffer at `address`, which this object gave out.
  cuda::DeviceMemory &at(const void *address);

  Status download(const void *address, Tensor &tensor);

private:
  std::shared_ptr<const cuda::Device> device;
  std::vector<cuda::DeviceMemory> buffers;
};

} // namespace tilewright::bench
