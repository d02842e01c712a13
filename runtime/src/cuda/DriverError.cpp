#include "tilewright/cuda/Driver.h"
#include <fmt/format.h>

namespace tilewright::cuda {
namespace {

/// What a person can do about a code; empty when nothing useful can be said.
std::string hintFor(int code, int driverVersion) {
  switch (code) {
  case kOutOfMemory:
    return "free device memory or use a smaller batch or shorter sequences";
  case kNotInitialized:
    return "the driver was initialised in a parent process: CUDA does not survive fork(); start the worker with exec, "
           "or "
           "fork before the first use";
  case kDeinitialized:
    return "the process is shutting down; launch nothing from exit handlers";
  case kStubLibrary:
    return "the library that was found is the toolkit's link-time stub: remove .../stubs from LD_LIBRARY_PATH";
  case kNoDevice:
    return "no GPU is visible: check nvidia-smi, CUDA_VISIBLE_DEVICES, and the container's --gpus option";
  case kInvalidImage:
  case kNoBinaryForGpu:
    return "the kernel was compiled for another architecture than this device's";
  case kInvalidPtx:
  case kUnsupportedPtxVersion:
    return fmt::format(
        "the kernel was compiled by a newer CUDA than this driver serves (CUDA {}): update the driver or "
        "use an older NVRTC (TILEWRIGHT_NVRTC)",
        cudaVersionText(driverVersion));
  case kIllegalAddress:
  case kMisalignedAddress:
    return "an earlier kernel or copy used a bad address and the context is lost; compute-sanitizer finds the place";
  case kLaunchOutOfResources:
    return "the kernel needs more registers or shared memory than a block may have";
  case kLaunchTimeout:
    return "the display's watchdog ended the kernel; use a GPU that drives no display";
  case kLaunchFailed:
    return "the kernel crashed and the context is lost; compute-sanitizer finds the place";
  case kSystemNotReady:
    return "the GPU's services are not running yet (on NVSwitch systems: nvidia-fabricmanager)";
  case kSystemDriverMismatch:
    return "the driver library and the kernel module have different versions: reboot, or in a container mount the "
           "host's "
           "libcuda";
  case kStreamCaptureUnsupported:
  case kStreamCaptureInvalidated:
  case kStreamCaptureImplicit:
    return "prepare kernels and allocate memory before capture begins; only launches belong inside";
  default:
    return {};
  }
}

} // namespace

std::string cudaVersionText(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Error driverError(const DriverApi *api, int code, Stage stage, std::string_view what, int driverVersion) {
  const char *name = nullptr, *text = nullptr;
  if (api && api->getErrorName) api->getErrorName(code, &name);
  if (api && api->getErrorString) api->getErrorString(code, &text);
  std::string shown = name ? std::string(name) : fmt::format("driver code {}", code);
  if (text) shown += fmt::format(" ({})", text);
  return Error{stage, fmt::format("cannot {}: {}", what, shown), hintFor(code, driverVersion), {}};
}

} // namespace tilewright::cuda
