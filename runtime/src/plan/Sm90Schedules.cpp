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

/// Whether the heads that share keys had better share tiles: where tiles of one head would be largely empty.
bool packsHeads(const Problem &problem) {
  const int64_t group = problem.groupSize();
  if (group < 2 || group > kGroupRows || problem.seqQ == 0 || problem.seqQ > kGroupRows || problem.maskReadsHead())
    return false;
  const int64_t positions = kGroupRows / group, packed = (problem.seqQ + positions - 1) / positions;
  return 3 * packed <= 2 * group;
}

/// Blocks that share the keys of a q tile: as many as make the grid's time least, if that spares a tenth of it. In
/// units of a visit (a microsecond, roughly): a block's share of them and what starts and ends a tile, in as many
/// rounds as the SMs need; then the merge, a launch and the traffic of the states.
int splitOf(const Schedule &schedule, const Problem &problem, const Target &target) {
  constexpr int64_t fewestVisits = 8, mostParts = 128;
  constexpr double perTile = 4, perMerge = 4, bytesPerVisit = 3e6;
  const QueryTiles q = queryTiles(schedule, problem, problem.seqQ, problem.headsQ);
  const int64_t tiles = q.tiles * q.heads * problem.batch, sms = target.smCount;
  int64_t keys = problem.seqKV;
  if (problem.window.left >= 0)
    keys = std::min(keys, problem.window.left + std::max<int64_t>(problem.window.right, 0) + q.positions);
  const double visits = static_cast<double>((keys + schedule.tileKV - 1) / schedule.tileKV);
  const int64_t most = std::min<int64_t>(static_cast<int64_t>(visits) / fewestVisits, mostParts);
  if (tiles == 0 || sms == 0 || tiles >= 2 * sms) return 1;
  auto cost = [&](int64_t parts) {
    const double rounds = static_cast<double>((tiles * parts + sms - 1) / sms);
    const double states =
        8.0 * static_cast<double>(tiles * parts * q.positions * packedHeads(schedule, problem) * problem.dimV);
    return rounds * (visits / static_cast<double>(parts) + perTile) +
           (parts > 1 ? perMerge + states / bytesPerVisit : 0);
  };
  int64_t best = 1;
  for (int64_t parts = 2; parts <= most; ++parts)
    if (cost(parts) < cost(best)) best = parts;
  return cost(best) < 0.9 * cost(1) ? static_cast<int>(best) : 1;
}

std::span<const Choice> choicesOf(const Problem &problem) {
  const int64_t dim = std::max(problem.dimQK, problem.dimV);
  constexpr int64_t kShort = 1024;
  if (problem.seqQ <= kGroupRows) return kFewRows;
  if (dim <= 64)
    return !problem.fullMask().empty() && problem.seqKV <= kShort ? std::span<const Choice>(kShort64) : kLong64;
  return dim <= 128 ? std::span<const Choice>(kUpTo128) : dim <= 192 ? std::span<const Choice>(kUpTo192) : kUpTo256;
}

} // namespace

std::vector<Schedule> sm90Candidates(const Problem &problem, const Target &target, Sm90Room needed) {
  Schedule schedule;
  schedule.order = problem.fullMask().empty() ? Order::Plain : Order::LongestFirst;
  schedule.rescaleThreshold = 8;
  schedule.packHeads = packsHeads(problem);
  std::vector<Schedule> all;
  for (const Choice &choice : choicesOf(problem)) {
    if (choice.room < needed) continue;
    schedule.tileQ = choice.tileQ;
    schedule.tileKV = choice.tileKV;
    schedule.stages = choice.stages;
    schedule.warps = choice.tileQ / kWarpRows;
    schedule.overlap = choice.overlap;
    schedule.splitKV = splitOf(schedule, problem, target);
    all.push_back(schedule);
  }
  return all;
}

int sm90Registers(const Schedule &schedule, const Problem &problem) {
  // A thread holds 1/128 of O and S in fp32 and of P in 16 bits.
  return kBaseRegisters + static_cast<int>(roundUp(problem.dimV, 16) / 2 + schedule.tileKV / 2 + schedule.tileKV / 4);
}

Status checkSm90Form(const Schedule &schedule, const Target &target) {
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
  return {};
}

Status checkSm90Room(const Schedule &schedule, const Problem &problem, const Target &target) {
  const int groups = schedule.tileQ / kGroupRows;
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
