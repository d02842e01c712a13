#include "tilewright/cuda/Driver.h"
#include <fmt/format.h>

namespace tilewright::cuda {

Expected<std::shared_ptr<const Driver>> Driver::open(const std::string &overridePath) {
  LibrarySearch search;
  search.what = "the CUDA driver";
  search.overridePath = overridePath;
  search.overrideVariable = "TILEWRIGHT_CUDA_DRIVER";
  search.names = {"libcuda.so.1"};
  // Not the toolkit's directories: what lies there under this name is a stub to link against.
  search.directories = {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib",
                        "/usr/local/nvidia/lib64"};
  search.hint =
      "install the NVIDIA driver (Debian: package nvidia-driver), or in a container start it with GPU access; "
      "without a GPU use the target cpu";
  auto library = DynamicLibrary::open(search);
  if (!library) return propagate(library);

  std::shared_ptr<Driver> driver(new Driver(std::move(*library)));
  if (Status status = driver->resolve(); !status) return propagate(status);
  if (Status status = driver->initialise(); !status) return propagate(status);
  return driver;
}

Status Driver::resolve() {
  auto load = [this](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
    return function != nullptr;
  };
  // The version comes first, so that an old driver is called old instead of incomplete.
  if (!load(functions.driverGetVersion, "cuDriverGetVersion") || !load(functions.init, "cuInit"))
    return fail(Stage::Load, fmt::format("{} is not a CUDA driver: it has no cuDriverGetVersion", library.path()),
                "unset TILEWRIGHT_CUDA_DRIVER or let it name the driver's libcuda.so.1");
  if (int code = functions.driverGetVersion(&driverVersion); code != kSuccess)
    return tl::unexpected(driverError(nullptr, code, Stage::Load, "read the CUDA driver's version", 0));
  if (driverVersion < kOldestDriver)
    return fail(Stage::Load,
                fmt::format("the CUDA driver {} is too old: it serves CUDA {}, expected {} or newer", library.path(),
                            cudaVersionText(driverVersion), cudaVersionText(kOldestDriver)),
                "update the NVIDIA driver to release 525 or newer");

  const char *missing = nullptr;
#define TILEWRIGHT_DRIVER_SYMBOL(member, name, parameters)                                                             \
  if (!load(functions.member, #name) && !missing) missing = #name;
#define TILEWRIGHT_DRIVER_OPTIONAL(member, name, parameters) load(functions.member, #name);
#include "tilewright/cuda/DriverSymbols.def"
  if (missing)
    return fail(
        Stage::Load,
        fmt::format("the CUDA driver {} (CUDA {}) has no {}", library.path(), cudaVersionText(driverVersion), missing),
        "the library is damaged or not NVIDIA's; reinstall the driver");
  return {};
}

Status Driver::initialise() {
  if (Status status = check(functions.init(0), Stage::Load, "initialise the CUDA driver"); !status) return status;
  int count = 0;
  if (Status status = check(functions.deviceGetCount(&count), Stage::Load, "count CUDA devices"); !status)
    return status;
  if (count == 0) return check(kNoDevice, Stage::Load, "find a CUDA device");

  for (int ordinal = 0; ordinal < count; ++ordinal) {
    DeviceInfo info;
    info.ordinal = ordinal;
    int device = 0;
    char name[256] = {};
    size_t bytes = 0;
    int shared = 0, l2 = 0;
    int code = functions.deviceGet(&device, ordinal);
    auto attribute = [&](int &value, DeviceAttribute which) {
      if (code == kSuccess) code = functions.deviceGetAttribute(&value, which, device);
    };
    if (code == kSuccess) code = functions.deviceGetName(name, sizeof(name) - 1, device);
    if (code == kSuccess) code = functions.deviceTotalMem(&bytes, device);
    attribute(info.major, kComputeCapabilityMajor);
    attribute(info.minor, kComputeCapabilityMinor);
    attribute(info.smCount, kMultiprocessorCount);
    attribute(shared, kSharedBytesPerBlockOptIn);
    attribute(l2, kL2CacheBytes);
    if (Status status = check(code, Stage::Load, fmt::format("query CUDA device {}", ordinal)); !status) return status;
    info.name = name;
    info.totalBytes = static_cast<int64_t>(bytes);
    info.sharedBytesPerBlock = shared;
    info.l2Bytes = l2;
    deviceList.push_back(std::move(info));
  }
  return {};
}

Status Driver::check(int code, Stage stage, std::string_view what) const {
  if (code == kSuccess) return {};
  return tl::unexpected(driverError(&functions, code, stage, what, driverVersion));
}

} // namespace tilewright::cuda
