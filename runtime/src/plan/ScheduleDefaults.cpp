// Schedules to start from without measuring: the first of a list, best first, that the target's limits admit.

#include "ScheduleLimits.h"
#include <span>

namespace tilewright {

namespace {

struct Choice {
  int tileQ, tileKV, stages, warps;
};

// 8 warps for the larger tiles: one block then fills an SM's shared memory, and 4 warps are too few to hide latency.
// Later entries serve wide heads, fp32 and the architectures with 99 KiB; the last ones only fit everything.
constexpr Choice kForward[] = {{128, 64, 2, 4}, {128, 64, 2, 8}, {64, 64, 2, 4}, {128, 32, 2, 8},
                               {64, 48, 2, 4},  {64, 32, 2, 4},  {64, 16, 2, 4}, {32, 32, 2, 2},
                               {32, 16, 2, 2},  {16, 16, 2, 1},  {16, 16, 1, 1}};
constexpr Choice kDQ[] = {{128, 64, 2, 8}, {64, 64, 2, 4}, {64, 48, 2, 4}, {64, 32, 2, 4}, {64, 16, 2, 4},
                          {32, 32, 2, 2},  {32, 16, 2, 2}, {16, 16, 2, 1}, {16, 16, 1, 1}};
constexpr Choice kDKV[] = {{64, 128, 2, 8}, {64, 64, 2, 4}, {32, 64, 2, 4}, {32, 64, 2, 8},
                           {32, 32, 2, 4},  {16, 32, 2, 4}, {16, 16, 2, 2}, {16, 16, 1, 2}};
constexpr Choice kDelta[] = {{64, 16, 2, 4}};

std::span<const Choice> choicesOf(KernelRole role) {
  switch (role) {
  case KernelRole::Forward:
    return kForward;
  case KernelRole::Delta:
    return kDelta;
  case KernelRole::DQ:
    return kDQ;
  case KernelRole::DKV:
    return kDKV;
  }
  return kForward;
}

/// The smallest of 16, 32, 64 that holds a short sequence, else 64.
int cpuTile(int64_t length) { return length <= 16 ? 16 : length <= 32 ? 32 : 64; }

} // namespace

std::vector<Schedule> candidates(const Problem &problem, const Target &target, KernelRole role) {
  Schedule schedule;
  // Without a mask all tiles have the same work.
  if (role != KernelRole::Delta && !problem.fullMask().empty()) schedule.order = Order::LongestFirst;
  if (target.isCpu()) {
    schedule.tileQ = cpuTile(problem.seqQ);
    schedule.tileKV = cpuTile(problem.seqKV);
    schedule.stages = schedule.warps = 1;
    return {schedule};
  }
  std::vector<Schedule> all;
  int64_t owned = role == KernelRole::DKV ? problem.seqKV : problem.seqQ;
  for (const Choice &choice : choicesOf(role)) {
    schedule.tileQ = choice.tileQ;
    schedule.tileKV = choice.tileKV;
    schedule.stages = choice.stages;
    schedule.warps = choice.warps;
    // A tile of 128 would be half empty.
    if (owned > 64 || ownedRows(schedule, role) <= 64) all.push_back(schedule);
  }
  return all;
}

Schedule Schedule::defaultFor(const Problem &problem, const Target &target, KernelRole role) {
  std::vector<Schedule> all = candidates(problem, target, role);
  for (const Schedule &schedule : all)
    if (schedule.validate(problem, target, role)) return schedule;
  return all.front();
}

} // namespace tilewright
