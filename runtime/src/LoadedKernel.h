// What a Kernel handle refers to. Everything a launch needs is resolved here, before the first one.
#pragma once

#include "Sm90Launcher.h"
#include "tilewright/CodeGenerator.h"
#include "tilewright/Kernel.h"
#include "tilewright/ThreadPool.h"
#include "tilewright/cuda/Module.h"
#include "tilewright/plan/Sm90Layout.h"

namespace tilewright {

/// What CPU kernels of one Context share.
struct HostResources {
  explicit HostResources(int threads) : pool(threads) {}
  ThreadPool pool;
  ScratchPool scratch;
};

struct LoadedKernel {
  KernelPlan plan;
  PrepareReport report;
  KernelFamily family = KernelFamily::Cpu;
  std::unique_ptr<cuda::Module> module; ///< CUDA
  std::unique_ptr<Sm90Launcher> sm90;   ///< Of the Sm90 family
  std::unique_ptr<HostCode> host;       ///< CPU
  std::shared_ptr<HostResources> resources;
};

} // namespace tilewright
