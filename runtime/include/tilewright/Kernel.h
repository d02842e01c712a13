// A prepared kernel: compiled, loaded, ready to launch any number of times.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/KernelArgs.h"
#include "tilewright/Sm90Launch.h"
#include "tilewright/cuda/CompileReport.h"
#include "tilewright/cuda/Module.h"
#include "tilewright/plan/KernelPlan.h"
#include <array>
#include <memory>
#include <optional>

namespace tilewright TILEWRIGHT_PUBLIC {

/// Where a kernel's code came from.
enum class KernelOrigin { Compiled, Disk, Bundle };

std::string_view toString(KernelOrigin origin); ///< "compiled", "disk", "bundle"

/// How a kernel was made ready. Times are what this preparation spent, 0 for steps that a cache hit spared.
struct PrepareReport {
  KernelOrigin origin = KernelOrigin::Compiled;
  std::string symbol, key;
  std::string path;     ///< The cache entry; empty when it could not be kept.
  std::string compiler; ///< "NVRTC 13.0"
  double generateMs = 0, compileMs = 0, loadMs = 0, totalMs = 0;
  cuda::CompileReport compile;    ///< Registers, spills and findings, also of a cache hit. CUDA only.
  int64_t dynamicSharedBytes = 0; ///< A block's. CUDA only.
  int64_t scratchBytes = 0;       ///< A thread's. CPU only.

  bool cacheHit() const { return origin != KernelOrigin::Compiled; }
};

/// Blocks of a launch: Forward has ceil(seqQ / tileQ) * headsQ * batch * splitKV (packed heads: of queryTiles()); DQ,
/// Delta, Convert and Merge have as many without splitKV; DKV and Fused have ceil(seqKV / tileKV) * headsKV * batch. Block x is tile
/// x % tiles of head x / tiles % heads of batch entry x / tiles / heads; of a split Forward, block x is part
/// x % splitKV of what block x / splitKV would be. More than 2^31 - 1 and sizes below 0 are errors.
Expected<int64_t> blockCount(const KernelPlan &plan, const KernelArgs &args);

/// Arguments with the problem's batch, head counts, lengths (elements) and scale; pointers are null.
KernelArgs argsFor(const Problem &problem);

/// Refuses arguments that the kernel cannot work on, naming the one at fault: missing pointers, head counts that do not
/// fit the plan's group size and, on CUDA, addresses and strides that are not multiples of 16 bytes.
Status checkArgs(const KernelPlan &plan, const KernelArgs &args);

/// Bytes of KernelArgs::dqSums for a Fused or Convert plan and the sizes in `args`: 4 * batch * headsQ *
/// ceil(seqQ / tileQ) * tileQ * (dimQK padded to whole fragments of the column warps, and 8 row sums without a score
/// function). 0 for other roles. A problem's Fused and Convert plans agree.
int64_t dqSumsBytes(const KernelPlan &plan, const KernelArgs &args);

/// Bytes of KernelArgs::partials for a Forward that splits keys, or its Merge, and the sizes in `args`: 4 * batch *
/// headsQ * ceil(seqQ / tileQ) * splitKV * tileQ * (dimV + 2) (packed heads: tiles of queryTiles()). 0 for others. Negative sizes count as 0.
int64_t partialsBytes(const KernelPlan &plan, const KernelArgs &args);

/// One cuLaunchKernel in the device's primary context: `blocks` x 1 x 1 blocks; nothing to do where that is 0.
struct LaunchCall {
  cuda::Entry entry;
  unsigned blocks = 0;
  KernelArgs args;
  std::optional<Sm90Launch> sm90; ///< Hopper's forward takes it as its second parameter.
  /// The kernelParams, which point into this object.
  std::array<void *, 2> parameters() { return {&args, sm90 ? &*sm90 : nullptr}; }
};

struct LoadedKernel;

/// A cheap, copyable handle. The code lives as long as a handle or the Context's memory of it. Thread-safe.
class Kernel {
public:
  Kernel(std::shared_ptr<const LoadedKernel> loaded, bool fromMemory)
      : loaded(std::move(loaded)), memoryHit(fromMemory) {}

  const KernelPlan &plan() const;
  const PrepareReport &report() const;          ///< Of the preparation that made it, also for memory hits.
  bool fromMemory() const { return memoryHit; } ///< This handle came from the Context's memory at once.
  bool sameCodeAs(const Kernel &other) const { return loaded == other.loaded; }

  /// CUDA: enqueues the kernel on `stream` (a CUstream; null is the legacy default stream) and returns. Compiles, loads
  /// and allocates nothing; may be captured. No blocks is success. Failures of the kernel itself surface at the next
  /// synchronisation.
  Status launch(void *stream, const KernelArgs &args) const;

  /// CUDA: what launch() would give to cuLaunchKernel, for hosts that put kernels into graphs by themselves. `stream`
  /// is the one it will run on; null where the launch may run beside others of the same kernel.
  Expected<LaunchCall> launchCall(void *stream, const KernelArgs &args) const;

  /// CPU: computes the kernel over the Context's threads and returns when it is done.
  Status run(const KernelArgs &args) const;

private:
  /// Blocks of a launch on a stream, or what is wrong with it.
  Expected<int64_t> checkedBlocks(const KernelArgs &args) const;

  std::shared_ptr<const LoadedKernel> loaded;
  bool memoryHit = false;
};

} // namespace tilewright
