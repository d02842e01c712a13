#include "tilewright/cuda/Module.h"
#include <fmt/format.h>

namespace tilewright::cuda {

Expected<std::unique_ptr<Module>> Module::load(std::shared_ptr<const Device> device, std::span<const char> cubin,
                                               const Options &options, bool *unusable) {
  const Driver &driver = device->driver();
  const DriverApi &api = device->api();
  const DeviceInfo &info = device->info();
  // Cubins run on older drivers of their own CUDA major version only (CUDA compatibility, minor version compatibility).
  if (options.compilerVersion / 1000 > driver.version() / 1000)
    return fail(Stage::Load,
                fmt::format("kernel {} was compiled by CUDA {}, but the driver serves only CUDA {}", options.symbol,
                            cudaVersionText(options.compilerVersion), cudaVersionText(driver.version())),
                fmt::format("update the driver to one for CUDA {}, or let TILEWRIGHT_NVRTC name an NVRTC of CUDA {}",
                            options.compilerVersion / 1000, driver.version() / 1000));
  if (options.dynamicSharedBytes > info.sharedBytesPerBlock)
    return fail(Stage::Load,
                fmt::format("kernel {} needs {} bytes of shared memory a block, device {} ({}) has {}", options.symbol,
                            options.dynamicSharedBytes, info.ordinal, info.name, info.sharedBytesPerBlock),
                "choose smaller tiles or fewer stages");

  std::unique_ptr<Module> module(new Module(device));
  module->symbol = options.symbol;
  module->threads = static_cast<unsigned>(options.threadsPerBlock);
  module->sharedBytes = static_cast<unsigned>(options.dynamicSharedBytes);
  CurrentContext current(api, device->context(), device->handle());
  RelaxedCapture relaxed(api);
  auto check = [&](int code, const char *what) {
    if (unusable && (code == kInvalidImage || code == kNoBinaryForGpu || code == kInvalidSource || code == kNotFound))
      *unusable = true;
    return driver.check(code, Stage::Load,
                        fmt::format("{} kernel {} on device {} ({}, compute capability {}.{})", what, options.symbol,
                                    info.ordinal, info.name, info.major, info.minor));
  };
  if (Status status = check(current.code(), "make a context current for"); !status) return propagate(status);
  if (Status status =
          check(api.libraryLoadData(&module->library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "load");
      !status) {
    module->library = nullptr;
    return propagate(status);
  }
  if (Status status = check(api.libraryGetKernel(&module->kernel, module->library, options.symbol.c_str()), "find");
      !status)
    return propagate(status);
  if (module->sharedBytes)
    if (Status status =
            check(api.kernelSetAttribute(kFunctionMaxDynamicSharedBytes, static_cast<int>(options.dynamicSharedBytes),
                                         module->kernel, device->handle()),
                  "permit the shared memory of");
        !status)
      return propagate(status);

  // The context that is current may be the host's own: the function is resolved in the primary one.
  void *popped = nullptr;
  if (Status status = check(api.ctxPushCurrent(device->context()), "make a context current for"); !status)
    return propagate(status);
  int code = api.kernelGetFunction(&module->function, module->kernel);
  // With lazy loading the first launch would copy the code to the device, which a capturing stream does not allow.
  if (code == kSuccess && api.funcLoad) code = api.funcLoad(module->function);
  api.ctxPopCurrent(&popped);
  if (Status status = check(code, "load"); !status) return propagate(status);

  int maxThreads = 0;
  code = api.kernelGetAttribute(&maxThreads, kFunctionMaxThreadsPerBlock, module->kernel, device->handle());
  if (code == kSuccess)
    code = api.kernelGetAttribute(&module->registerCount, kFunctionRegisters, module->kernel, device->handle());
  if (Status status = check(code, "query"); !status) return propagate(status);
  if (options.threadsPerBlock > maxThreads)
    return fail(Stage::Load,
                fmt::format("kernel {} is launched with {} threads a block, but its {} registers a thread allow {}",
                            options.symbol, options.threadsPerBlock, module->registerCount, maxThreads),
                "choose fewer warps or smaller tiles");
  return module;
}

Module::~Module() {
  if (!library) return;
  RelaxedCapture relaxed(device->api());
  device->api().libraryUnload(library);
}

Status Module::launchElsewhere(void *stream, unsigned blocks, const void *argument, const void *second) const {
  const DriverApi &api = device->api();
  CurrentContext current(api, device->context(), device->handle());
  if (current.code() != kSuccess) return launchError(current.code(), blocks);
  // Now either the primary context or a host's own context of this device is current: the driver finds the function of
  // whichever it is from the kernel.
  void *parameters[] = {const_cast<void *>(argument), const_cast<void *>(second)};
  int code = api.launchKernel(kernel, blocks, 1, 1, threads, 1, 1, sharedBytes, stream, parameters, nullptr);
  if (code != kSuccess) return launchError(code, blocks);
  return {};
}

Status Module::launchError(int code, unsigned blocks) const {
  return device->driver().check(code, Stage::Launch,
                                fmt::format("launch kernel {} ({} blocks of {} threads, {} bytes of shared memory)",
                                            symbol, blocks, threads, sharedBytes));
}

} // namespace tilewright::cuda
