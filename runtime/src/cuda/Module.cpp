#include "tilewright/cuda/Module.h"
#include <fmt/format.h>

namespace tilewright::cuda {

namespace {

Status checkLoad(const Device &device, int code, const char *what, const std::string &symbol, bool *unusable) {
  if (unusable && (code == kInvalidImage || code == kNoBinaryForGpu || code == kInvalidSource || code == kNotFound))
    *unusable = true;
  const DeviceInfo &info = device.info();
  return device.driver().check(code, Stage::Load,
                               fmt::format("{} kernel {} on device {} ({}, compute capability {}.{})", what, symbol,
                                           info.ordinal, info.name, info.major, info.minor));
}

/// What can be said without loading.
Status checkNeeds(const Device &device, const Module::Options &options) {
  const Driver &driver = device.driver();
  const DeviceInfo &info = device.info();
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
  return {};
}

} // namespace

struct Module::Library {
  explicit Library(std::shared_ptr<const Device> device) : device(std::move(device)) {}
  ~Library() {
    if (!handle) return;
    RelaxedCapture relaxed(device->api());
    device->api().libraryUnload(handle);
  }
  Library(const Library &) = delete;
  Library &operator=(const Library &) = delete;

  std::shared_ptr<const Device> device;
  void *handle = nullptr;
};

Module::Module(std::shared_ptr<const Library> library) : library(std::move(library)), device(this->library->device) {}

Expected<std::unique_ptr<Module>> Module::load(std::shared_ptr<const Device> device, std::span<const char> cubin,
                                               const Options &options, bool *unusable) {
  auto modules = loadAll(std::move(device), cubin, options, {&options.symbol, 1}, unusable);
  if (!modules) return propagate(modules);
  return std::move(modules->front());
}

Expected<std::vector<std::unique_ptr<Module>>> Module::loadAll(std::shared_ptr<const Device> device,
                                                               std::span<const char> cubin, const Options &options,
                                                               std::span<const std::string> symbols, bool *unusable) {
  if (Status status = checkNeeds(*device, options); !status) return propagate(status);
  const DriverApi &api = device->api();
  CurrentContext current(api, device->context(), device->handle());
  RelaxedCapture relaxed(api);
  if (Status status = checkLoad(*device, current.code(), "make a context current for", options.symbol, unusable);
      !status)
    return propagate(status);
  auto library = std::make_shared<Library>(device);
  const int code = api.libraryLoadData(&library->handle, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (code != kSuccess) library->handle = nullptr;
  if (Status status = checkLoad(*device, code, "load", options.symbol, unusable); !status) return propagate(status);
  std::vector<std::unique_ptr<Module>> modules;
  for (const std::string &symbol : symbols) {
    Options own = options;
    own.symbol = symbol;
    modules.emplace_back(new Module(library));
    if (Status status = modules.back()->resolve(own, unusable); !status) return propagate(status);
  }
  return modules;
}

/// With a context of the device current.
Status Module::resolve(const Options &options, bool *unusable) {
  const DriverApi &api = device->api();
  symbol = options.symbol;
  threads = static_cast<unsigned>(options.threadsPerBlock);
  sharedBytes = static_cast<unsigned>(options.dynamicSharedBytes);
  auto check = [&](int code, const char *what) { return checkLoad(*device, code, what, symbol, unusable); };
  if (Status status = check(api.libraryGetKernel(&kernel, library->handle, symbol.c_str()), "find"); !status)
    return status;
  if (sharedBytes)
    if (Status status =
            check(api.kernelSetAttribute(kFunctionMaxDynamicSharedBytes, static_cast<int>(options.dynamicSharedBytes),
                                         kernel, device->handle()),
                  "permit the shared memory of");
        !status)
      return status;

  // The context that is current may be the host's own: the function is resolved in the primary one.
  void *popped = nullptr;
  if (Status status = check(api.ctxPushCurrent(device->context()), "make a context current for"); !status)
    return status;
  int code = api.kernelGetFunction(&function, kernel);
  // With lazy loading the first launch would copy the code to the device, which a capturing stream does not allow.
  if (code == kSuccess && api.funcLoad) code = api.funcLoad(function);
  api.ctxPopCurrent(&popped);
  if (Status status = check(code, "load"); !status) return status;

  int maxThreads = 0;
  code = api.kernelGetAttribute(&maxThreads, kFunctionMaxThreadsPerBlock, kernel, device->handle());
  if (code == kSuccess) code = api.kernelGetAttribute(&registerCount, kFunctionRegisters, kernel, device->handle());
  if (Status status = check(code, "query"); !status) return status;
  if (options.threadsPerBlock > maxThreads)
    return fail(Stage::Load,
                fmt::format("kernel {} is launched with {} threads a block, but its {} registers a thread allow {}",
                            symbol, options.threadsPerBlock, registerCount, maxThreads),
                "choose fewer warps or smaller tiles");
  return {};
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
