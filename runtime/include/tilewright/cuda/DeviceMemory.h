// Device memory and the copies that fill it. A null stream is the legacy default stream; copies of pageable host memory
// return when the host memory may be reused.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/cuda/Device.h"

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

/// Owns device memory, 256-byte aligned. Movable. An empty buffer has address 0.
class DeviceMemory {
public:
  DeviceMemory() = default;
  /// The error says how much was asked for and how much is free. 0 bytes give an empty buffer.
  static Expected<DeviceMemory> allocate(std::shared_ptr<const Device> device, int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory &&other) noexcept { swap(other); }
  DeviceMemory &operator=(DeviceMemory &&other) noexcept {
    swap(other);
    return *this;
  }

  void *data() const { return reinterpret_cast<void *>(address); }
  int64_t size() const { return bytes; }

  /// Copy `count` bytes from or to host memory, in the order of `stream`; offset + count must lie inside the buffer.
  Status copyFromHost(const void *source, int64_t count, int64_t offset = 0, void *stream = nullptr);
  Status copyToHost(void *target, int64_t count, int64_t offset = 0, void *stream = nullptr) const;
  /// Sets every byte.
  Status fill(unsigned char value, void *stream = nullptr);

private:
  void swap(DeviceMemory &other) noexcept {
    std::swap(device, other.device);
    std::swap(address, other.address);
    std::swap(bytes, other.bytes);
  }
  Status checkRange(int64_t count, int64_t offset, const char *what) const;

  std::shared_ptr<const Device> device;
  uint64_t address = 0;
  int64_t bytes = 0;
};

// The same for memory by its address, whoever owns it.
Status copyFromHost(const Device &device, void *to, const void *source, int64_t count, void *stream);
Status copyToHost(const Device &device, void *target, const void *from, int64_t count, void *stream);
Status fill(const Device &device, void *data, unsigned char value, int64_t count, void *stream);

} // namespace cuda
} // namespace tilewright
