#include "tilewright/plan/Sm90Layout.h"

namespace tilewright {

namespace {

/// TMA's and wgmma's 128-byte swizzle works on chunks of 64 columns; the last one is filled with zeros.
int64_t chunksOf(int64_t dim) { return (dim + 63) / 64; }
int64_t tileBytes(int64_t rows, int64_t dim) { return rows * chunksOf(dim) * 128; }

} // namespace

KernelFamily familyOf(const Problem &problem, const Target &target, KernelRole role) {
  if (target.isCpu()) return KernelFamily::Cpu;
  bool hopper = target.name == "sm_90a" && role == KernelRole::Forward && problem.dtype != DType::F32;
  return hopper ? KernelFamily::Sm90 : KernelFamily::Sm80;
}

int threadsPerBlock(const Schedule &schedule, KernelFamily family) {
  constexpr int kProducerThreads = 128;
  return 32 * schedule.warps + (family == KernelFamily::Sm90 ? kProducerThreads : 0);
}

Sm90Layout sm90Layout(const Schedule &schedule, const Problem &problem, int64_t sharedBytes) {
  const int64_t query = tileBytes(schedule.tileQ, problem.dimQK);
  const int64_t rings =
      schedule.stages * (tileBytes(schedule.tileKV, problem.dimQK) + tileBytes(schedule.tileKV, problem.dimV));
  Sm90Layout layout;
  for (int queryStages : {2, 1})
    for (int staged = static_cast<int>(chunksOf(problem.dimV)); staged >= 1; --staged) {
      // A full and an empty barrier of 8 bytes for each slot, and the slot through which tiles are dealt.
      const int64_t barriers = 16 * (queryStages + 2 * schedule.stages) + 32;
      layout = {queryStages, staged,
                queryStages * query + rings + tileBytes(schedule.tileQ, 64) * staged + barriers};
      if (layout.bytes <= sharedBytes) return layout;
    }
  return layout;
}

} // namespace tilewright
