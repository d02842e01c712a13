// The driver, devices, NVRTC and tuned store of a Context: opened when first needed, each once.
#include "ContextState.h"

namespace tilewright {

Expected<std::shared_ptr<const cuda::Driver>> Context::State::driver() {
  std::lock_guard lock(toolMutex);
  if (openDriver) return openDriver;
  auto opened = cuda::Driver::open(environment.cudaDriver);
  if (opened) openDriver = *opened;
  return opened;
}

Expected<std::shared_ptr<const cuda::Device>> Context::State::device(int ordinal) {
  auto opened = driver();
  if (!opened) return propagate(opened);
  std::lock_guard lock(toolMutex);
  if (auto known = openDevices.find(ordinal); known != openDevices.end()) return known->second;
  auto device = cuda::Device::open(*opened, ordinal);
  if (device) openDevices[ordinal] = *device;
  return device;
}

cuda::Nvrtc::Search Context::State::nvrtcSearch() {
  // A driver of CUDA 12 cannot load what NVRTC 13 makes: its own generation is tried first.
  std::lock_guard lock(toolMutex);
  return {environment.nvrtc, environment.libraryPath, environment.cudaHome,
          openDriver ? openDriver->version() / 1000 : 0};
}

Expected<std::shared_ptr<const cuda::Nvrtc>> Context::State::nvrtc() {
  auto search = nvrtcSearch();
  std::lock_guard lock(toolMutex);
  if (openNvrtc) return openNvrtc;
  auto opened = cuda::Nvrtc::open(search);
  if (opened) openNvrtc = *opened;
  return opened;
}

std::shared_ptr<TunedStore> Context::State::tunedStore() {
  if (!environment.tuned || cache.directory().empty()) return nullptr;
  std::lock_guard lock(toolMutex);
  // Where there is none yet, another process may make it.
  if (!openTuned) openTuned = TunedStore::openExisting(cache.directory(), log);
  return openTuned;
}

} // namespace tilewright
