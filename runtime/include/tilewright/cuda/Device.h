// One GPU: its primary context (shared with every other CUDA user of the process), memory, streams and events.
// Everything made from a Device keeps it alive. Thread-safe, except that one Stream or Event belongs to one thread at a
// time. Destructors ignore errors: at process exit the driver may be gone already.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/cuda/Driver.h"
#include <utility>

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

/// Makes a context current for a scope, unless one of the same device already is: a host's own context is never
/// replaced without need, and what was current before is current again afterwards.
class CurrentContext {
public:
  CurrentContext(const DriverApi &api, void *context, int device);
  ~CurrentContext();
  CurrentContext(const CurrentContext &) = delete;
  CurrentContext &operator=(const CurrentContext &) = delete;
  int code() const { return result; } ///< kSuccess, or why no context could be made current.

private:
  const DriverApi &api;
  bool pushed = false;
  int result = kSuccess;
};

/// Lets this thread load, unload and allocate while another thread captures a stream, without ending that capture.
class RelaxedCapture {
public:
  explicit RelaxedCapture(const DriverApi &api) : api(api) { api.exchangeCaptureMode(&mode); }
  ~RelaxedCapture() { api.exchangeCaptureMode(&mode); }
  RelaxedCapture(const RelaxedCapture &) = delete;
  RelaxedCapture &operator=(const RelaxedCapture &) = delete;

private:
  const DriverApi &api;
  int mode = kCaptureModeRelaxed;
};

class Device : public std::enable_shared_from_this<Device> {
public:
  static Expected<std::shared_ptr<const Device>> open(std::shared_ptr<const Driver> driver, int ordinal);
  ~Device();
  Device(const Device &) = delete;
  Device &operator=(const Device &) = delete;

  const Driver &driver() const { return *owner; }
  const DriverApi &api() const { return owner->api(); }
  const DeviceInfo &info() const { return deviceInfo; }
  int handle() const { return deviceHandle; }
  void *context() const { return primaryContext; }

  struct Memory {
    int64_t freeBytes = 0, totalBytes = 0;
  };
  Expected<Memory> memory() const;
  /// Waits for all work of the context. Errors of earlier launches surface here.
  Status synchronize() const;
  /// A null stream is never capturing.
  Expected<bool> isCapturing(void *stream) const;

private:
  Device(std::shared_ptr<const Driver> driver, DeviceInfo info)
      : owner(std::move(driver)), deviceInfo(std::move(info)) {}

  std::shared_ptr<const Driver> owner;
  DeviceInfo deviceInfo;
  int deviceHandle = 0;
  void *primaryContext = nullptr;
};

} // namespace cuda
} // namespace tilewright
