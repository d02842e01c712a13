// A loaded cubin with its entry point, ready to launch on one device.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/cuda/Device.h"
#include <span>

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

/// What a host that launches a kernel itself (in graphs of its own, say) passes to cuLaunchKernel beside the grid.
struct Entry {
  void *function = nullptr; ///< The CUfunction in the device's primary context; lives as long as the Module.
  unsigned threads = 0;     ///< Of a block.
  unsigned sharedBytes = 0; ///< Dynamic shared memory of a block.
};

class Module {
public:
  struct Options {
    std::string symbol;
    int64_t dynamicSharedBytes = 0;
    int threadsPerBlock = 0;
    int compilerVersion = 0; ///< CUDA version of the compiler, 13000 for 13.0; 0 when not known.
  };

  /// Loads once for the process, resolves the entry point, permits its dynamic shared memory and makes the device hold
  /// its code, so that a launch does none of this. Errors name what the kernel needs and what the device or driver has;
  /// `unusable` is then set when the cubin itself is at fault (damaged, or of another architecture).
  static Expected<std::unique_ptr<Module>> load(std::shared_ptr<const Device> device, std::span<const char> cubin,
                                                const Options &options, bool *unusable = nullptr);
  /// Several entry points of one cubin, which is loaded once for all of them; options.symbol names it in errors.
  static Expected<std::vector<std::unique_ptr<Module>>> loadAll(std::shared_ptr<const Device> device,
                                                                std::span<const char> cubin, const Options &options,
                                                                std::span<const std::string> symbols,
                                                                bool *unusable = nullptr);
  Module(const Module &) = delete;
  Module &operator=(const Module &) = delete;

  /// Enqueues `blocks` blocks on `stream` (a CUstream) with one parameter, the struct at `argument`, or two. Takes no
  /// lock and allocates nothing. Safe from several threads.
  Status launch(void *stream, unsigned blocks, const void *argument, const void *second = nullptr) const {
    void *current = nullptr;
    const DriverApi &api = device->api();
    if (api.ctxGetCurrent(&current) != kSuccess || current != device->context())
      return launchElsewhere(stream, blocks, argument, second);
    void *parameters[] = {const_cast<void *>(argument), const_cast<void *>(second)};
    int code = api.launchKernel(function, blocks, 1, 1, threads, 1, 1, sharedBytes, stream, parameters, nullptr);
    if (code != kSuccess) return launchError(code, blocks);
    return {};
  }

  Entry entry() const { return {function, threads, sharedBytes}; }
  int registers() const { return registerCount; }

private:
  struct Library;
  explicit Module(std::shared_ptr<const Library> library);
  Status resolve(const Options &options, bool *unusable);
  Status launchElsewhere(void *stream, unsigned blocks, const void *argument, const void *second) const;
  Status launchError(int code, unsigned blocks) const;

  std::shared_ptr<const Library> library; ///< The loaded cubin.
  std::shared_ptr<const Device> device;
  void *kernel = nullptr;
  void *function = nullptr; ///< The kernel in the primary context.
  unsigned threads = 0, sharedBytes = 0;
  int registerCount = 0;
  std::string symbol;
};

} // namespace cuda
} // namespace tilewright
