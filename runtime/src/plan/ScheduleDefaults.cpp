// Schedules to start from without measuring: the first of a list, best first, that the target's limits admit.

#include "ScheduleLimits.h"
#include "tilewright/plan/Sm90Layout.h"
#include <algorithm>
#include <bit>
#include <span>
#include <string_view>

namespace tilewright {

namespace {

/// What else claims registers in a kernel, or makes the assembler of a target use them worse.
enum Demand : unsigned {
  kNothing = 0,
  kClasses = 1, ///< A mask that is classified tile by tile
  kScore = 2,   ///< A score function and its slopes
  kClassesAndScore = 4,
  kSm8x = 8, ///< Targets before sm_90
  kSm10x = 16,
  kSm12x = 32,
  kAnyMaskOrScore = kClasses | kScore,
};

struct Choice {
  int tileQ, tileKV, stages, warps, columnWarps, blocksPerSM;
  unsigned spillsWith = kNothing; ///< Demands that make ptxas spill: the choice is then a last resort.
};

// Measured on an H200 (templates/sm80/NOTES.md); the later entries of a list serve less shared memory or more demands
// and fit all. tests/e2e/test_default_kernels.py holds every default to no spills.
constexpr Choice kForward64[] = {{128, 64, 2, 4, 1, 2, kClasses}, {64, 32, 2, 4, 1, 2}, {64, 32, 1, 4, 1, 1}};
constexpr Choice kForward128[] = {
    {128, 32, 2, 4, 1, 2, kClasses}, {128, 32, 2, 4, 1, 1, kClasses}, {64, 32, 2, 4, 1, 2}, {64, 32, 1, 4, 1, 1}};
constexpr Choice kForward256[] = {
    {128, 64, 2, 8, 1, 1}, {64, 64, 1, 4, 1, 1}, {64, 32, 2, 4, 1, 1}, {64, 32, 1, 4, 1, 1}};
constexpr Choice kForwardF32Narrow[] = {
    {64, 32, 2, 4, 1, 1, kAnyMaskOrScore}, {64, 16, 2, 4, 1, 1}, {64, 16, 1, 4, 1, 1}};
constexpr Choice kForwardF32Middle[] = {
    {64, 16, 2, 4, 1, 1, kClassesAndScore}, {64, 16, 1, 4, 1, 1}, {32, 16, 1, 2, 1, 1}};
constexpr Choice kForwardF32[] = {{64, 16, 2, 4, 1, 1, kClassesAndScore},
                                  {64, 16, 1, 4, 1, 1, kClassesAndScore},
                                  {32, 16, 2, 2, 1, 1},
                                  {32, 16, 1, 2, 1, 1},
                                  {16, 16, 1, 1, 1, 1}};
constexpr Choice kDQ64[] = {{128, 64, 2, 4, 1, 2, kClasses | kSm8x | kSm12x},
                            {128, 48, 2, 4, 1, 2, kClasses},
                            {64, 32, 2, 4, 1, 2},
                            {64, 16, 1, 4, 1, 1}};
constexpr Choice kDQ128[] = {{128, 32, 2, 4, 1, 2, kClasses | kSm8x | kSm10x},
                             {128, 16, 2, 4, 1, 2, kClasses | kSm8x | kSm12x},
                             {64, 32, 2, 4, 1, 2},
                             {64, 16, 1, 4, 1, 1}};
constexpr Choice kDQ256[] = {{64, 32, 1, 4, 1, 2}, {64, 16, 1, 4, 1, 1}};
constexpr Choice kDQF32[] = {{64, 16, 2, 4, 1, 1}, {64, 16, 1, 4, 1, 1}, {32, 16, 1, 2, 1, 1}, {16, 16, 1, 1, 1, 1}};
constexpr Choice kDKV64[] = {
    {32, 128, 2, 4, 1, 2, kAnyMaskOrScore | kSm8x | kSm12x}, {64, 64, 2, 4, 2, 2}, {64, 64, 1, 4, 2, 1}};
constexpr Choice kDKV128[] = {{64, 64, 1, 4, 2, 2, kClasses}, {32, 64, 2, 4, 2, 2}, {64, 32, 1, 4, 2, 1}};
constexpr Choice kDKV256[] = {{64, 32, 1, 4, 2, 2}, {32, 32, 1, 4, 2, 2}, {32, 32, 1, 4, 2, 1}};
constexpr Choice kDKVF32[] = {{32, 64, 1, 8, 2, 1}, {32, 32, 1, 4, 2, 1}, {32, 16, 1, 2, 2, 1}};
constexpr Choice kFused64[] = {{64, 64, 2, 4, 2, 3, kSm10x}, {64, 64, 2, 4, 2, 2}, {32, 64, 1, 4, 2, 1}};
constexpr Choice kFused128[] = {{64, 128, 2, 8, 2, 1, kClassesAndScore}, {32, 64, 2, 4, 2, 1}, {32, 64, 1, 4, 2, 1}};
constexpr Choice kFused256[] = {
    {64, 64, 1, 8, 2, 1, kClasses | kSm8x | kSm10x}, {32, 64, 1, 8, 2, 1}, {32, 32, 1, 4, 2, 1}};
constexpr Choice kDelta[] = {{64, 16, 1, 4, 1, 1}};

std::span<const Choice> choicesOf(const Problem &problem, KernelRole role) {
  int64_t dim = std::max(problem.dimQK, problem.dimV);
  bool isF32 = problem.dtype == DType::F32;
  auto pick = [&](std::span<const Choice> d64, std::span<const Choice> d128, std::span<const Choice> d256,
                  std::span<const Choice> f32) {
    return isF32 ? f32 : dim <= 64 ? d64 : dim <= 128 ? d128 : d256;
  };
  switch (role) {
  case KernelRole::Forward:
    if (isF32 && dim <= 128) return kForwardF32Narrow;
    if (isF32 && dim <= 192) return kForwardF32Middle;
    return pick(kForward64, kForward128, kForward256, kForwardF32);
  case KernelRole::DQ:
    return pick(kDQ64, kDQ128, kDQ256, kDQF32);
  case KernelRole::DKV:
    return pick(kDKV64, kDKV128, kDKV256, kDKVF32);
  case KernelRole::Fused:
  case KernelRole::Convert:
    return pick(kFused64, kFused128, kFused256, kFused256);
  case KernelRole::Delta:
  case KernelRole::Merge:
    break;
  }
  return kDelta;
}

/// Shared memory that the system keeps for each block (CUDA C++ programming guide, compute capability 8.x and newer).
constexpr int64_t kReservedSharedBytes = 1024;

/// Whether a mask can leave more than one interval of keys to a query. Judged by what it is written with: a guess that
/// chooses a default, never a result.
bool mayNeedClasses(std::string_view mask) {
  for (std::string_view sign : {"|", "or", "%", "//", "[", "!", "not", "where", "abs", "min", "max"})
    if (mask.find(sign) != std::string_view::npos) return true;
  return false;
}

bool hasScore(const Problem &problem) { return problem.softcap > 0 || !problem.score.empty(); }

unsigned demandsOf(const Problem &problem, const Target &target) {
  unsigned demands = kNothing;
  if (mayNeedClasses(problem.mask)) demands |= kClasses;
  if (hasScore(problem)) demands |= demands & kClasses ? kScore | kClassesAndScore : kScore;
  if (target.computeCapability < 90) demands |= kSm8x;
  if (target.computeCapability >= 100) demands |= target.computeCapability >= 120 ? kSm12x : kSm10x;
  return demands;
}

/// The smallest of 16, 32, 64 that holds a short sequence, else 64.
int cpuTile(int64_t length) { return length <= 16 ? 16 : length <= 32 ? 32 : 64; }

/// Parts that keep every thread of a CPU busy: a few for each, so that none waits long for the last one, but none so
/// small that starting it and merging its state shows. A power of two, so that few kernels serve many lengths.
int cpuSplit(const Problem &problem, const Schedule &schedule, int threads) {
  constexpr int64_t partsPerThread = 4, fewestKeys = 1024;
  const int64_t tiles = (problem.seqQ + schedule.tileQ - 1) / schedule.tileQ;
  const int64_t blocks = problem.batch * problem.headsQ * tiles;
  if (threads <= 1 || blocks == 0 || blocks >= partsPerThread * threads) return 1;
  const int64_t wanted = (partsPerThread * threads + blocks - 1) / blocks;
  const int64_t most = std::min<int64_t>(std::min(wanted, problem.seqKV / fewestKeys), kSplitRange.high);
  return most < 2 ? 1 : static_cast<int>(std::bit_floor(static_cast<uint64_t>(most)));
}

} // namespace

std::vector<Schedule> candidates(const Problem &problem, const Target &target, KernelRole role) {
  Schedule schedule;
  // Without a mask all tiles have the same work; under a causal one the first kv tiles are the longest already.
  bool ownsQ = role == KernelRole::Forward || role == KernelRole::DQ;
  if (ownsQ && !problem.fullMask().empty()) schedule.order = Order::LongestFirst;
  if (target.isCpu()) {
    schedule.tileQ = cpuTile(problem.seqQ);
    schedule.tileKV = cpuTile(problem.seqKV);
    schedule.stages = schedule.warps = 1;
    if (role == KernelRole::Forward || role == KernelRole::Merge)
      schedule.splitKV = cpuSplit(problem, schedule, target.threads);
    return {role == KernelRole::Merge ? mergeScheduleOf(schedule, target) : schedule};
  }
  const unsigned demands = demandsOf(problem, target);
  if (familyOf(problem, target, role) == KernelFamily::Sm90)
    return sm90Candidates(problem, target,
                          demands & kClasses ? Sm90Room::Classes
                          : demands & kScore ? Sm90Room::Score
                                             : Sm90Room::None);
  std::vector<Schedule> all, spilling;
  if (role == KernelRole::Merge) {
    for (const Schedule &forward : candidates(problem, target, KernelRole::Forward))
      all.push_back(mergeScheduleOf(forward, target));
    return all;
  }
  if (role == KernelRole::Convert) {
    for (const Schedule &fused : candidates(problem, target, KernelRole::Fused))
      all.push_back(convertScheduleOf(fused));
    return all;
  }
  int64_t owned = ownsKV(role) ? problem.seqKV : problem.seqQ;
  if (role == KernelRole::Forward) schedule.rescaleThreshold = 8;
  for (const Choice &choice : choicesOf(problem, role)) {
    schedule.tileQ = choice.tileQ;
    schedule.tileKV = choice.tileKV;
    schedule.stages = choice.stages;
    schedule.warps = choice.warps;
    schedule.columnWarps = choice.columnWarps;
    schedule.blocksPerSM = choice.blocksPerSM;
    // A score function's slopes take the registers that a third block would leave out.
    if (hasScore(problem) && role == KernelRole::Fused) schedule.blocksPerSM = std::min(schedule.blocksPerSM, 2);
    if (owned <= 64 && ownedRows(schedule, role) == 128) { // would be half empty
      (ownsKV(role) ? schedule.tileKV : schedule.tileQ) = 64;
      // Fused's eight warps own 16 rows each then: four would spill.
      if (schedule.warps == 8 && role != KernelRole::Fused) schedule.warps = 4;
    }
    if (role == KernelRole::Fused) { // a launch bound that shared memory cannot honour only costs registers
      int64_t bytes = schedule.sharedBytes(problem, target, role) + kReservedSharedBytes;
      int64_t fitting = std::clamp<int64_t>(target.sharedBytesPerSM / bytes, 1, schedule.blocksPerSM);
      schedule.blocksPerSM = static_cast<int>(fitting);
    }
    (choice.spillsWith & demands ? spilling : all).push_back(schedule);
  }
  all.insert(all.end(), spilling.begin(), spilling.end());
  return all;
}

Schedule convertScheduleOf(const Schedule &fused) {
  Schedule schedule;
  schedule.tileQ = fused.tileQ;
  schedule.tileKV = kTileRange.low; // no kv tile is loaded
  schedule.stages = 1;
  schedule.warps = std::max(1, fused.tileQ / kWarpRows);
  schedule.columnWarps = fused.columnWarps;
  return schedule;
}

Schedule mergeScheduleOf(const Schedule &forward, const Target &target) {
  Schedule schedule;
  schedule.tileQ = forward.tileQ;
  schedule.tileKV = kTileRange.low; // no kv tile is loaded
  schedule.stages = 1;
  schedule.warps = target.isCpu() ? 1 : 8; // rows at a time
  schedule.splitKV = forward.splitKV;
  schedule.packHeads = forward.packHeads;
  return schedule;
}

Schedule Schedule::defaultFor(const Problem &problem, const Target &target, KernelRole role) {
  std::vector<Schedule> all = candidates(problem, target, role);
  for (const Schedule &schedule : all)
    if (schedule.validate(problem, target, role)) return schedule;
  return all.front();
}

} // namespace tilewright
