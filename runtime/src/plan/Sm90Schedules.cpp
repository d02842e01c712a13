// Schedules of the Hopper forward kernel: what it can run, and where to start without measuring.
#include "ScheduleLimits.h"
#include "tilewright/plan/Sm90Layout.h"
#include <algorithm>
#include <fmt/format.h>
#include <span>

namespace tilewright {

namespace {

constexpr int kGroupRows = 64; ///< Rows of a warp group: wgmma's M.

/// Registers of a consumer's thread, by the number of consumer groups: the producer gives back what it does not need.
constexpr int kConsumerRegisters[] = {0, 255, 240, 160, 112};
/// Addresses, row state and what is in flight beside the accumulators.
constexpr int kBaseRegisters = 32;

tl::unexpected<Error> refuse(std::string message, std::string hint = {}) {
  return fail(Stage::Plan, "schedule of forward: " + std::move(message), std::move(hint));
}

int64_t roundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

struct Choice {
  int tileQ, tileKV, stages;
  Overlap overlap;
  Sm90Room room;
};

// Measured on an H200 (templates/sm90/NOTES.md).
constexpr Choice kLong64[] = {{192, 128, 3, Overlap::PingPong, Sm90Room::None},
                              {128, 128, 3, Overlap::Both, Sm90Room::Score},
                              {128, 64, 3, Overlap::Both, Sm90Room::Classes}};
constexpr Choice kShort64[] = {{128, 128, 3, Overlap::Both, Sm90Room::Score},
                               {128, 64, 3, Overlap::Both, Sm90Room::Classes}};
constexpr Choice kUpTo128[] = {{128, 128, 2, Overlap::Both, Sm90Room::None},
                               {128, 64, 3, Overlap::Both, Sm90Room::Classes}};
constexpr Choice kUpTo192[] = {{128, 128, 2, Overlap::Both, Sm90Room::Score},
                               {128, 96, 2, Overlap::Both, Sm90Room::Score},
                               {128, 64, 2, Overlap::Both, Sm90Room::Classes}};
constexpr Choice kUpTo256[] = {{128, 64, 2, Overlap::Both, Sm90Room::Score},
                               {128, 32, 2, Overlap::Both, Sm90Room::Classes}};
/// Few query rows: one consumer group.
constexpr Choice kFewRows[] = {{64, 128, 3, Overlap::None, Sm90Room::Classes},
                               {64, 128, 2, Overlap::None, Sm90Room::Classes},
                               {64, 64, 2, Overlap::None, Sm90Room::Classes}};

std::span<const Choice> choicesOf(const Problem &problem) {
  const int64_t dim = std::max(problem.dimQK, problem.dimV);
  constexpr int64_t kShort = 1024;
  if (problem.seqQ <= kGroupRows) return kFewRows;
  if (dim <= 64)
    return !problem.fullMask().empty() && problem.seqKV <= kShort ? std::span<const Choice>(kShort64) : kLong64;
  return dim <= 128 ? std::span<const Choice>(kUpTo128) : dim <= 192 ? std::span<const Choice>(kUpTo192) : kUpTo256;
}

} // namespace

std::vector<Schedule> sm90Candidates(const Problem &problem, Sm90Room needed) {
  Schedule schedule;
  schedule.order = problem.fullMask().empty() ? Order::Plain : Order::LongestFirst;
  schedule.rescaleThreshold = 8;
  std::vector<Schedule> all;
  for (const Choice &choice : choicesOf(problem)) {
    if (choice.room < needed) continue;
    schedule.tileQ = choice.tileQ;
    schedule.tileKV = choice.tileKV;
    schedule.stages = choice.stages;
    schedule.warps = choice.tileQ / kWarpRows;
    schedule.overlap = choice.overlap;
    all.push_back(schedule);
  }
  return all;
}

int sm90Registers(const Schedule &schedule, const Problem &problem) {
  // A thread holds 1/128 of O and S in fp32 and of P in 16 bits.
  return kBaseRegisters + static_cast<int>(roundUp(problem.dimV, 16) / 2 + schedule.tileKV / 2 + schedule.tileKV / 4);
}

Status checkSm90(const Schedule &schedule, const Problem &problem, const Target &target) {
  const int groups = schedule.tileQ / kGroupRows;
  if (schedule.tileQ % kGroupRows != 0 || groups > 4)
    return refuse(fmt::format("tile_q: {} kernels take 64, 128, 192 or 256 rows (a warp group owns 64), found {}",
                              target.name, schedule.tileQ),
                  "--target sm_90 has kernels with smaller tiles");
  if (schedule.warps * kWarpRows != schedule.tileQ)
    return refuse(fmt::format("warps: tile_q={} takes {} (16 rows each; the producer's are not counted), found {}",
                              schedule.tileQ, schedule.tileQ / kWarpRows, schedule.warps));
  if (schedule.columnWarps != 1)
    return refuse(fmt::format("column_warps: only dkv and fused split columns, found {}", schedule.columnWarps));
  if (schedule.blocksPerSM != 1)
    return refuse(fmt::format("blocks_per_sm: a block of {} fills its SM: expected 1, found {}", target.name,
                              schedule.blocksPerSM));
  if (groups == 1 && overlapsBetween(schedule.overlap))
    return refuse(fmt::format("overlap: ping_pong needs two warp groups or more, tile_q={} has one", schedule.tileQ),
                  "choose none or intra, or tile_q from 128");
  if (int64_t bytes = sm90Layout(schedule, problem, target.sharedBytesPerBlock).bytes;
      bytes > target.sharedBytesPerBlock)
    return refuse(fmt::format("shared memory: tile_q={}, tile_kv={}, stages={} need {} bytes a block; {} has {}",
                              schedule.tileQ, schedule.tileKV, schedule.stages, bytes, target.name,
                              target.sharedBytesPerBlock),
                  "lower tile_q, tile_kv or stages; for this kernel alone: forward.tile_kv=...");
  if (int registers = sm90Registers(schedule, problem); registers > kConsumerRegisters[groups])
    return refuse(fmt::format("registers: tile_q={}, tile_kv={} need about {} a thread; {} consumer groups leave {}",
                              schedule.tileQ, schedule.tileKV, registers, groups, kConsumerRegisters[groups]),
                  "lower tile_kv, or tile_q for fewer groups with more registers each");
  return {};
}

} // namespace tilewright
