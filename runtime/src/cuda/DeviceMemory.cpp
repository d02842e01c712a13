#include "tilewright/cuda/DeviceMemory.h"
#include <fmt/format.h>

namespace tilewright::cuda {

Expected<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<const Device> device, int64_t bytes) {
  if (bytes < 0) return fail(Stage::Input, fmt::format("cannot allocate {} bytes of device memory", bytes));
  DeviceMemory memory;
  memory.device = std::move(device);
  memory.bytes = bytes;
  if (bytes == 0) return memory;
  const Device &on = *memory.device;
  CurrentContext current(on.api(), on.context(), on.handle());
  RelaxedCapture relaxed(on.api());
  int code =
      current.code() == kSuccess ? on.api().memAlloc(&memory.address, static_cast<size_t>(bytes)) : current.code();
  if (code == kSuccess) return memory;
  memory.address = 0;
  std::string what = fmt::format("allocate {} bytes ({:.2f} GiB) on device {} ({})", bytes, bytes / 1073741824.0,
                                 on.info().ordinal, on.info().name);
  Error error = driverError(&on.api(), code, Stage::Launch, what, on.driver().version());
  if (auto state = on.memory(); code == kOutOfMemory && state)
    error.message += fmt::format("; {} of {} bytes are free", state->freeBytes, state->totalBytes);
  return tl::unexpected(std::move(error));
}

DeviceMemory::~DeviceMemory() {
  if (!address) return;
  CurrentContext current(device->api(), device->context(), device->handle());
  RelaxedCapture relaxed(device->api());
  device->api().memFree(address);
}

Status DeviceMemory::checkRange(int64_t count, int64_t offset, const char *what) const {
  if (offset >= 0 && count >= 0 && offset <= bytes && count <= bytes - offset) return {};
  return fail(Stage::Input, fmt::format("cannot {} bytes [{}, {} + {}) of a device buffer of {} bytes", what, offset,
                                        offset, count, bytes));
}

Status DeviceMemory::copyFromHost(const void *source, int64_t count, int64_t offset, void *stream) {
  if (Status status = checkRange(count, offset, "write"); !status) return status;
  return cuda::copyFromHost(*device, static_cast<char *>(data()) + offset, source, count, stream);
}

Status DeviceMemory::copyToHost(void *target, int64_t count, int64_t offset, void *stream) const {
  if (Status status = checkRange(count, offset, "read"); !status) return status;
  return cuda::copyToHost(*device, target, static_cast<char *>(data()) + offset, count, stream);
}

Status DeviceMemory::fill(unsigned char value, void *stream) {
  return cuda::fill(*device, data(), value, bytes, stream);
}

Status copyFromHost(const Device &device, void *to, const void *source, int64_t count, void *stream) {
  if (count == 0) return {};
  CurrentContext current(device.api(), device.context(), device.handle());
  int code = current.code();
  if (code == kSuccess)
    code = device.api().memcpyHtoDAsync(reinterpret_cast<uint64_t>(to), source, static_cast<size_t>(count), stream);
  return device.driver().check(code, Stage::Launch, fmt::format("copy {} bytes to the device", count));
}

Status copyToHost(const Device &device, void *target, const void *from, int64_t count, void *stream) {
  if (count == 0) return {};
  CurrentContext current(device.api(), device.context(), device.handle());
  int code = current.code();
  if (code == kSuccess)
    code = device.api().memcpyDtoHAsync(target, reinterpret_cast<uint64_t>(from), static_cast<size_t>(count), stream);
  // Pinned host memory would be written after the call returned; the caller may read it when this function returns.
  if (code == kSuccess) code = device.api().streamSynchronize(stream);
  return device.driver().check(code, Stage::Launch, fmt::format("copy {} bytes from the device", count));
}

Status fill(const Device &device, void *data, unsigned char value, int64_t count, void *stream) {
  if (count == 0) return {};
  CurrentContext current(device.api(), device.context(), device.handle());
  int code = current.code();
  if (code == kSuccess)
    code = device.api().memsetD8Async(reinterpret_cast<uint64_t>(data), value, static_cast<size_t>(count), stream);
  return device.driver().check(code, Stage::Launch, fmt::format("fill {} bytes on the device", count));
}

} // namespace tilewright::cuda
