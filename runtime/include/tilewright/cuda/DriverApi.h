// The driver's functions as resolved pointers, and the few of its constants that Tilewright uses. The values are those
// of the CUDA driver API, which is binary stable.
#pragma once

#include "tilewright/Export.h"
#include <cstddef>
#include <cstdint>

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

struct DriverApi {
  int (*init)(unsigned flags) = nullptr;
  int (*driverGetVersion)(int *version) = nullptr;
#define TILEWRIGHT_DRIVER_SYMBOL(member, name, parameters) int(*member) parameters = nullptr;
#include "tilewright/cuda/DriverSymbols.def"
};

/// CUresult values that the code tells apart.
enum DriverCode : int {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kInvalidSource = 300,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchTimeout = 702,
  kMisalignedAddress = 716,
  kLaunchFailed = 719,
  kSystemNotReady = 802,
  kSystemDriverMismatch = 803,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureImplicit = 906,
};

/// CUdevice_attribute
enum DeviceAttribute : int {
  kClockKilohertz = 13, ///< At most.
  kMultiprocessorCount = 16,
  kL2CacheBytes = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kSharedBytesPerBlockOptIn = 97,
};

/// CUfunction_attribute
enum FunctionAttribute : int {
  kFunctionMaxThreadsPerBlock = 0,
  kFunctionRegisters = 4,
  kFunctionMaxDynamicSharedBytes = 8,
};

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr int kCaptureModeRelaxed = 2; ///< CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr int kCaptureStatusNone = 0;

} // namespace cuda
} // namespace tilewright
