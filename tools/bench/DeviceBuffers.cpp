#include "DeviceBuffers.h"
#include <algorithm>

namespace tilewright::bench {

Expected<void *> DeviceBuffers::allocate(int64_t bytes) {
  Expected<cuda::DeviceMemory> memory = cuda::DeviceMemory::allocate(device, std::max<int64_t>(bytes, 16));
  if (!memory) return propagate(memory);
  buffers.push_back(std::move(*memory));
  return buffers.back().data();
}

Expected<void *> DeviceBuffers::poisoned(int64_t bytes) {
  Expected<void *> address = allocate(bytes);
  if (!address) return address;
  if (Status status = buffers.back().fill(0xff); !status) return propagate(status);
  return address;
}

Expected<void *> DeviceBuffers::upload(const void *data, int64_t bytes) {
  Expected<void *> address = allocate(bytes);
  if (!address) return address;
  if (Status status = buffers.back().copyFromHost(data, bytes); !status) return propagate(status);
  return address;
}

Expected<TensorRef> DeviceBuffers::upload(const Tensor &tensor) {
  if (!tensor.valid()) return TensorRef{};
  Expected<void *> address = upload(tensor.data(), tensor.bytes());
  if (!address) return propagate(address);
  TensorRef ref = tensor.ref();
  ref.data = *address;
  return ref;
}

Expected<TableRef> DeviceBuffers::upload(const Table &table) {
  TableRef ref = table.ref();
  int64_t rows = table.shape().size() == 2 ? table.shape()[0] : 1, extent = table.extent();
  Expected<void *> data = upload(ref.data, rows * extent * 4);
  if (!data) return propagate(data);
  ref.data = *data;
  if (ref.tileMin) {
    int64_t entries = rows * ((extent + kTableExtentTile - 1) / kTableExtentTile);
    Expected<void *> low = upload(ref.tileMin, entries * 4);
    if (!low) return propagate(low);
    Expected<void *> high = upload(ref.tileMax, entries * 4);
    if (!high) return propagate(high);
    ref.tileMin = static_cast<const int32_t *>(*low);
    ref.tileMax = static_cast<const int32_t *>(*high);
  }
  return ref;
}

cuda::DeviceMemory &DeviceBuffers::at(const void *address) {
  return *std::ranges::find(buffers, address,
                            [](const cuda::DeviceMemory &memory) -> const void * { return memory.data(); });
}

Status DeviceBuffers::download(const void *address, Tensor &tensor) {
  return at(address).copyToHost(tensor.data(), tensor.bytes());
}

} // namespace tilewright::bench
