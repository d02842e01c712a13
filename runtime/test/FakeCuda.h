// The controls of the fake CUDA libraries that FakeCuda.cpp builds: driver and NVRTC in one file, on the CPU. Tests
// open that file as TILEWRIGHT_CUDA_DRIVER and TILEWRIGHT_NVRTC and reach the controls by its symbol "fakeCuda".
#pragma once

#include <atomic>
#include <cstdint>

struct FakeCuda {
  // What the libraries pretend.
  std::atomic<int> driverVersion{13000}, initCode{0}, devices{1}, major{9}, minor{0}, sharedOptIn{232448};
  std::atomic<int> maxThreads{1024}, freeBytes{1 << 30};
  std::atomic<int> nvrtcMajor{13}, nvrtcMinor{0}, compileCode{0}, compileMilliseconds{0};
  std::atomic<int> failLoads{0}; ///< The next so many loads say "invalid image".
  std::atomic<bool> gone{false}; ///< Everything says "deinitialized", as at process exit.
  std::atomic<bool> busy{false}; ///< No event is reached.
  void *capturingStream = nullptr;
  /// When set, kernels that are loaded from then on run: it is called in each launch. Device memory is host memory.
  void (*execute)(const char *symbol, unsigned blocks, unsigned threads, void **parameters) = nullptr;
  const char *extraLog = "";

  // What happened.
  std::atomic<int> compiles{0}, loads{0}, unloads{0}, launches{0}, contexts{0}, pushes{0}, pops{0};
  std::atomic<int> strictCalls{0}; ///< Loads, unloads and allocations made without relaxed capture mode.
  std::atomic<int64_t> allocated{0};
  std::atomic<int> streamWaits{0};

  struct Launch {
    void *function, *stream;
    unsigned blocks, threads, sharedBytes;
    int32_t batch; ///< KernelArgs::batch of the parameter.
  } lastLaunch{};
  std::atomic<int> sharedAttribute{0};
  /// The last tensor map of five axes.
  struct TensorMap {
    uint64_t extents[5], strides[4]; ///< Elements; bytes
    uint32_t box[5];
  } widestMap{};
};

using FakeCudaControls = FakeCuda *(*)();
