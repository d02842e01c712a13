// The CUDA driver, opened when first needed. Thread-safe; one object may serve the whole process.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/Export.h"
#include "tilewright/cuda/DriverApi.h"
#include "tilewright/cuda/DynamicLibrary.h"
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0; ///< Compute capability.
  int smCount = 0;
  int64_t totalBytes = 0;
  int64_t sharedBytesPerBlock = 0; ///< The opt-in limit.
  int64_t l2Bytes = 0;
};

/// CUDA versions as the driver and NVRTC count them: 13000 -> "13.0".
std::string cudaVersionText(int version);

/// Oldest driver served: CUDA 12.0 brought libraries that load once for all contexts.
inline constexpr int kOldestDriver = 12000;

class Driver {
public:
  /// Opens libcuda (or the file `overridePath`) and initialises it. Errors: no driver, one older than CUDA 12.0, a stub
  /// library, no device, a kernel module of another version; each with what to do.
  static Expected<std::shared_ptr<const Driver>> open(const std::string &overridePath = {});

  const DriverApi &api() const { return functions; }
  int version() const { return driverVersion; } ///< Newest CUDA it serves: 13000 is CUDA 13.0.
  const std::string &path() const { return library.path(); }
  const std::vector<DeviceInfo> &devices() const { return deviceList; } ///< Never empty.

  /// Success, or the Error that explains `code`: "cannot WHAT: CUDA_ERROR_X (its text)".
  Status check(int code, Stage stage, std::string_view what) const;

private:
  explicit Driver(DynamicLibrary opened) : library(std::move(opened)) {}
  Status resolve();
  Status initialise();

  DynamicLibrary library;
  DriverApi functions;
  int driverVersion = 0;
  std::vector<DeviceInfo> deviceList;
};

/// The one place where driver codes become Errors. `api` may be null or unresolved: then the number stands for the
/// name.
Error driverError(const DriverApi *api, int code, Stage stage, std::string_view what, int driverVersion);

} // namespace cuda
} // namespace tilewright
