// How the Hopper forward kernel (compiler/lib/cuda/Sm90Scheduler.h) fills a block's shared memory: a value that follows
// from problem and schedule, so that the check of a plan and the code made for it agree.
#pragma once

#include "tilewright/plan/Schedule.h"

namespace tilewright {

/// Which kernels a plan takes its code from.
enum class KernelFamily {
  Cpu,
  Sm80, ///< cp.async and mma.sync, every GPU from sm_80
  Sm90, ///< TMA, wgmma and specialised warp groups: forward in bf16 and fp16 on sm_90a
};

KernelFamily familyOf(const Problem &problem, const Target &target, KernelRole role);

/// Threads of a block: those that the warps of a schedule have, and the producer's warp group in the Sm90 family.
int threadsPerBlock(const Schedule &schedule, KernelFamily family);

struct Sm90Layout {
  int queryStages = 1;  ///< Q tiles in flight: with two the next tile's Q arrives while this one is computed.
  int stagedChunks = 1; ///< Chunks of 64 columns of O that each warp has room to stage on its way out.
  int64_t bytes = 0;    ///< Shared memory of a block.
};

/// The roomiest layout that fits `sharedBytes`; the smallest one where none does.
Sm90Layout sm90Layout(const Schedule &schedule, const Problem &problem, int64_t sharedBytes);

} // namespace tilewright
