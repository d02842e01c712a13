// The front door of the runtime: prepares kernels through memory, bundles, the disk cache and, last, the compiler.
#pragma once

#include "tilewright/CodeGenerator.h"
#include "tilewright/CudaSource.h"
#include "tilewright/Environment.h"
#include "tilewright/Export.h"
#include "tilewright/Kernel.h"
#include "tilewright/Log.h"
#include "tilewright/cache/DiskCache.h"
#include "tilewright/cuda/Device.h"
#include "tilewright/cuda/Nvrtc.h"
#include "tilewright/tuning/ScheduleChoice.h"
#include <optional>

namespace tilewright TILEWRIGHT_PUBLIC {

struct ContextOptions {
  /// Makes code on cache misses. Null: kernels come from caches and bundles only, and CPU kernels cannot be loaded.
  /// Not owned; outlives the Context and its kernels.
  CodeGenerator *generator = nullptr;
  std::string generatorId = kGeneratorId;
  std::string hostCompiler;              ///< What `generator` makes CPU code with: "LLVM 22.1.8".
  std::vector<std::string> nvrtcOptions; ///< After the fixed ones.
  LogCallback log;
  std::optional<std::string> cacheDir;    ///< Wins over the environment; "" is no disk cache.
  std::optional<Environment> environment; ///< The process's unless given.
  /// Kernels that spill registers or serialise wgmma are errors instead of warnings.
  bool refuseProblems = false;
};

struct PrepareOptions {
  int device = 0; ///< CUDA ordinal.
  /// The stream the kernel is for, if known: preparing a new kernel while it captures is refused.
  void *stream = nullptr;
};

/// A kernel's code without a device: what `Context::compile` gives.
struct CompiledKernel {
  CacheEntry entry;
  PrepareReport report;
  std::string cudaSource; ///< Empty on a cache hit and for the CPU.
};

/// Thread-safe. The same kernel is compiled once, however many threads ask at a time; different ones compile in
/// parallel; a kernel that is ready is handed out without waiting for any compile. Kernels may outlive their Context.
class Context {
public:
  static Expected<std::shared_ptr<Context>> create(ContextOptions options);
  ~Context();
  Context(const Context &) = delete;
  Context &operator=(const Context &) = delete;

  Expected<Kernel> prepare(const KernelPlan &plan, const PrepareOptions &options = {});

  /// Code from the cache or the compiler, stored in the cache, not loaded: needs no GPU.
  Expected<CompiledKernel> compile(const KernelPlan &plan);

  /// The same for CUDA text of one's own, which needs no CodeGenerator. It is not remembered in memory: each call loads.
  Expected<CudaKernels> prepare(const CudaSource &source, const PrepareOptions &options = {});
  /// `architecture` has its letter: "sm_90a".
  Expected<CompiledKernel> compile(const CudaSource &source, const std::string &architecture);

  /// The plans of a problem's kernels for a target: as measured by `tilewright tune` where the cache folder has it, else
  /// by default; see choosePlans().
  Expected<std::vector<PlanChoice>> choose(const Problem &problem, const Target &target,
                                           const ScheduleOverrides &overrides = {}, int device = 0);

  /// Forgets kernels that no handle uses; the number forgotten.
  size_t dropUnused();

  // Opened at first use; a failure is tried again at the next call.
  Expected<std::shared_ptr<const cuda::Driver>> driver();
  Expected<std::shared_ptr<const cuda::Device>> device(int ordinal = 0);
  Expected<std::shared_ptr<const cuda::Nvrtc>> nvrtc();

  /// What this processor runs, with threads() threads.
  Target hostTarget() const;
  /// The best target for a device.
  Expected<Target> deviceTarget(int ordinal = 0);

  const Environment &environment() const;
  DiskCache &diskCache();
  int threads() const; ///< That run CPU kernels.
  const std::string &generatorId() const;
  const std::string &hostCompiler() const;

private:
  struct State;
  explicit Context(std::unique_ptr<State> state);
  std::unique_ptr<State> state;
};

} // namespace tilewright
