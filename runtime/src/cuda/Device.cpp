#include "tilewright/cuda/Device.h"
#include <fmt/format.h>

namespace tilewright::cuda {

CurrentContext::CurrentContext(const DriverApi &api, void *context, int device) : api(api) {
  void *current = nullptr;
  if (api.ctxGetCurrent(&current) == kSuccess && current) {
    int currentDevice = -1;
    if (current == context || (api.ctxGetDevice(&currentDevice) == kSuccess && currentDevice == device)) return;
  }
  result = api.ctxPushCurrent(context);
  pushed = result == kSuccess;
}

CurrentContext::~CurrentContext() {
  void *popped = nullptr;
  if (pushed) api.ctxPopCurrent(&popped);
}

Expected<std::shared_ptr<const Device>> Device::open(std::shared_ptr<const Driver> driver, int ordinal) {
  const auto &devices = driver->devices();
  if (ordinal < 0 || ordinal >= static_cast<int>(devices.size()))
    return fail(Stage::Load,
                fmt::format("device {} does not exist: this process sees {} device{}, counted from 0", ordinal,
                            devices.size(), devices.size() == 1 ? "" : "s"),
                "choose one of them, or check CUDA_VISIBLE_DEVICES");
  std::shared_ptr<Device> device(new Device(std::move(driver), devices[ordinal]));
  const DriverApi &api = device->api();
  const std::string what = fmt::format("open device {} ({})", ordinal, device->deviceInfo.name);
  if (Status status = device->owner->check(api.deviceGet(&device->deviceHandle, ordinal), Stage::Load, what); !status)
    return propagate(status);
  if (Status status =
          device->owner->check(api.primaryCtxRetain(&device->primaryContext, device->deviceHandle), Stage::Load, what);
      !status)
    return propagate(status);
  return device;
}

Device::~Device() {
  if (primaryContext) api().primaryCtxRelease(deviceHandle);
}

Expected<Device::Memory> Device::memory() const {
  CurrentContext current(api(), primaryContext, deviceHandle);
  size_t freeBytes = 0, totalBytes = 0;
  int code = current.code() == kSuccess ? api().memGetInfo(&freeBytes, &totalBytes) : current.code();
  if (Status status = owner->check(code, Stage::Load, "read the device's free memory"); !status)
    return propagate(status);
  return Memory{static_cast<int64_t>(freeBytes), static_cast<int64_t>(totalBytes)};
}

Status Device::synchronize() const {
  CurrentContext current(api(), primaryContext, deviceHandle);
  return owner->check(current.code() == kSuccess ? api().ctxSynchronize() : current.code(), Stage::Launch,
                      fmt::format("finish the work on device {}", deviceInfo.ordinal));
}

Expected<bool> Device::isCapturing(void *stream) const {
  if (!stream) return false;
  CurrentContext current(api(), primaryContext, deviceHandle);
  int captureStatus = kCaptureStatusNone;
  int code = current.code() == kSuccess ? api().streamIsCapturing(stream, &captureStatus) : current.code();
  if (Status status = owner->check(code, Stage::Launch, "ask a stream whether it captures"); !status)
    return propagate(status);
  return captureStatus != kCaptureStatusNone;
}

} // namespace tilewright::cuda
