#include "ScheduleLimits.h"
#include "ScheduleNames.h"
#include "tilewright/plan/Sm90Layout.h"
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fmt/format.h>

namespace tilewright {

namespace {

int64_t roundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// Bytes of one row of a tile in shared memory. A row is a multiple of 16 elements and 8 more: an odd number of 16-byte
/// units, so that the 8 rows that ldmatrix reads at once lie in different banks. fp32 is kept as three bf16 planes, the
/// rounded value and twice what rounding lost.
int64_t rowBytes(int64_t paddedDim, DType dtype) { return (paddedDim + 8) * (dtype == DType::F32 ? 6 : 2); }

/// LSE and delta of a tile of query rows, fp32.
int64_t rowStatisticsBytes(int64_t rows) { return rows * 2 * 4; }

/// Allowance for addresses, loop state, row maxima and sums, and operand fragments in flight.
constexpr int kBaseRegisters = 40;

int64_t sharedBytesOf(const Schedule &schedule, const Problem &problem, KernelRole role) {
  // Column warps own equal shares of whole fragments.
  int64_t step = ownsKV(role) ? 16 * schedule.columnWarps : 16;
  int64_t paddedQK = roundUp(problem.dimQK, step), paddedV = roundUp(problem.dimV, step);
  int64_t qk = rowBytes(paddedQK, problem.dtype), v = rowBytes(paddedV, problem.dtype);
  int64_t tileQ = schedule.tileQ, tileKV = schedule.tileKV, stages = schedule.stages;
  switch (role) {
  case KernelRole::Forward:
    return tileQ * std::max(qk, v) + stages * tileKV * (qk + v); // o leaves through q's tile
  case KernelRole::Delta:
  case KernelRole::Merge:
    return 0;
  case KernelRole::DQ:
    return tileQ * (qk + v) + rowStatisticsBytes(tileQ) + stages * tileKV * (qk + v);
  case KernelRole::DKV: {
    // Warps that split columns hand P and dS to each other through shared memory.
    int64_t exchange = schedule.columnWarps > 1 ? 2 * tileKV * rowBytes(tileQ, problem.dtype) : 0;
    return tileKV * (qk + v) + stages * (tileQ * (qk + v) + rowStatisticsBytes(tileQ)) + exchange;
  }
  case KernelRole::Fused: {
    // dS always passes through shared memory: dQ's product reads it transposed.
    int64_t tiles = schedule.columnWarps > 1 ? 2 : 1;
    return tileKV * (qk + v) + stages * (tileQ * (qk + v) + rowStatisticsBytes(tileQ)) +
           tiles * tileKV * rowBytes(tileQ, problem.dtype);
  }
  case KernelRole::Convert: // dQ on its way out; before that the keys' mean
    return std::max<int64_t>(tileQ * rowBytes(paddedDimQK(schedule, problem), problem.dtype), kMaxCudaHeadDim * 4);
  }
  return 0;
}

/// fp32 accumulators of a warp's rows are spread over 32 threads.
int registersOf(const Schedule &schedule, const Problem &problem, KernelRole role) {
  if (role == KernelRole::Delta || role == KernelRole::Merge) return 0;
  if (role == KernelRole::Convert)
    return kBaseRegisters + static_cast<int>(paddedDimQK(schedule, problem) * kWarpRows / 32);
  WarpGrid grid = warpGrid(schedule);
  int64_t rows = ownedRows(schedule, role) / grid.rowGroups;
  int64_t dimQK = roundUp(problem.dimQK, 16), dimV = roundUp(problem.dimV, 16);
  int64_t columns = 0;
  switch (role) {
  case KernelRole::Forward:
    columns = dimV + schedule.tileKV;
    break; // O, S (P takes S's place)
  case KernelRole::DQ:
    columns = dimQK + 2 * schedule.tileKV;
    break; // dQ, S, dP
  case KernelRole::DKV:
    columns = (dimQK + dimV + 2 * schedule.tileQ) / grid.columnGroups; // dK, dV, S^T, dP^T
    break;
  case KernelRole::Fused: { // dQ's part takes the place of S^T and dP^T
    int64_t scores = rows * 2 * schedule.tileQ / grid.columnGroups;
    int64_t dQ = schedule.tileQ * paddedDimQK(schedule, problem) / schedule.warps;
    int64_t sums = rows * (dimQK + dimV) / grid.columnGroups;
    return kBaseRegisters + static_cast<int>((sums + std::max(scores, dQ)) / 32);
  }
  case KernelRole::Delta:
  case KernelRole::Merge:
  case KernelRole::Convert:
    break;
  }
  return kBaseRegisters + static_cast<int>(rows * columns / 32);
}

tl::unexpected<Error> refuse(KernelRole role, std::string message, std::string hint = {}) {
  return fail(Stage::Plan, fmt::format("schedule of {}: {}", toString(role), message), std::move(hint));
}

Status checkTile(const char *field, int value) {
  if (value >= kTileRange.low && value <= kTileRange.high && value % kTileRange.step == 0) return {};
  return fail(Stage::Plan, fmt::format("schedule: {}: expected a multiple of {} from {} to {}, found {}", field,
                                       kTileRange.step, kTileRange.low, kTileRange.high, value));
}

Status checkDims(const Problem &problem, const Target &target) {
  for (auto [field, dim] : {std::pair{"dim_qk", problem.dimQK}, std::pair{"dim_v", problem.dimV}}) {
    if (dim > kMaxCudaHeadDim)
      return fail(
          Stage::Plan,
          fmt::format("{}: {} kernels take head dims up to {}, found {}", field, target.name, kMaxCudaHeadDim, dim),
          fmt::format("--target cpu takes head dims up to {}", kMaxHeadDim));
    if (dim % kCudaDimStep != 0)
      return fail(Stage::Plan,
                  fmt::format("{}: {} kernels take head dims that are multiples of {} (rows are moved in pieces of 16 "
                              "bytes), found {}",
                              field, target.name, kCudaDimStep, dim),
                  fmt::format("pad with zeros to {}, the next valid head dim, and keep the scale at 1/sqrt({})",
                              roundUp(dim, kCudaDimStep), dim));
  }
  return {};
}

Status checkWarps(const Schedule &schedule, const Problem &problem, KernelRole role) {
  int rows = ownedRows(schedule, role);
  const char *field = ownsKV(role) ? "tile_kv" : "tile_q";
  if (schedule.columnWarps > 1 && !ownsKV(role))
    return refuse(role, fmt::format("column_warps: only dkv and fused split columns, found {}", schedule.columnWarps));
  if (schedule.warps % schedule.columnWarps != 0)
    return refuse(role,
                  fmt::format("warps={} is not a multiple of column_warps={}", schedule.warps, schedule.columnWarps));
  WarpGrid grid = warpGrid(schedule);
  int each = rows / grid.rowGroups;
  if (rows % grid.rowGroups != 0 || (each != kWarpRows && each != 2 * kWarpRows))
    return refuse(role,
                  fmt::format("{}={} over {} warps is {} rows each: expected {} or {}", field, rows, grid.rowGroups,
                              each, kWarpRows, 2 * kWarpRows),
                  fmt::format("{} is {} or {} times the warps{}", field, kWarpRows, 2 * kWarpRows,
                              ownsKV(role) ? " that column_warps leaves for rows" : ""));
  if (schedule.tileQ % (16 * grid.columnGroups) != 0)
    return refuse(role, fmt::format("column_warps={} split tile_q={}: expected a multiple of {}", grid.columnGroups,
                                    schedule.tileQ, 16 * grid.columnGroups));
  if (role != KernelRole::Fused) return {};
  if (!std::has_single_bit(static_cast<unsigned>(schedule.tileQ)))
    return refuse(role, fmt::format("tile_q: expected 16, 32, 64, 128 or 256, found {}", schedule.tileQ),
                  "convert gives each 16 of these rows a warp, and warps are a power of two");
  if (schedule.rowWarpsOfDQ(problem) == 0)
    return refuse(role,
                  fmt::format("warps={} do not split dQ's tile of {} x {} into whole 16 x 16 blocks", schedule.warps,
                              schedule.tileQ, paddedDimQK(schedule, problem)),
                  "fewer warps or a larger tile_q leave each a block");
  return {};
}

/// Convert is made for the sums of a Fused kernel.
Status checkConvert(const Schedule &schedule) {
  if (schedule.warps * kWarpRows == schedule.tileQ) return {};
  return refuse(KernelRole::Convert, fmt::format("warps: expected a warp for each {} of tile_q={} rows, found {}",
                                                 kWarpRows, schedule.tileQ, schedule.warps));
}

} // namespace

bool ownsKV(KernelRole role) { return role == KernelRole::DKV || role == KernelRole::Fused; }

int ownedRows(const Schedule &schedule, KernelRole role) { return ownsKV(role) ? schedule.tileKV : schedule.tileQ; }

WarpGrid warpGrid(const Schedule &schedule) { return {schedule.warps / schedule.columnWarps, schedule.columnWarps}; }

int64_t paddedDimQK(const Schedule &schedule, const Problem &problem) {
  return roundUp(problem.dimQK, 16 * schedule.columnWarps);
}

int Schedule::rowWarpsOfDQ(const Problem &problem) const {
  int64_t columns = paddedDimQK(*this, problem), best = 0, bestDifference = 0;
  for (int64_t rowWarps = 1; rowWarps <= warps; rowWarps *= 2) {
    int64_t otherWarps = warps / rowWarps;
    if (tileQ % (16 * rowWarps) != 0 || columns % (16 * otherWarps) != 0) continue;
    int64_t difference = std::abs(tileQ / rowWarps - columns / otherWarps);
    if (best != 0 && difference >= bestDifference) continue;
    best = rowWarps;
    bestDifference = difference;
  }
  return static_cast<int>(best);
}

int64_t sumColumns(const Schedule &schedule, const Problem &problem) {
  return paddedDimQK(schedule, problem) + (centresSums(problem) ? 8 : 0);
}

bool centresSums(const Problem &problem) { return problem.fullScore().empty(); }

int64_t Schedule::sharedBytes(const Problem &problem, const Target &target, KernelRole role) const {
  if (familyOf(problem, target, role) == KernelFamily::Sm90)
    return sm90Layout(*this, problem, target.sharedBytesPerBlock).bytes;
  return target.isCpu() ? 0 : sharedBytesOf(*this, problem, role);
}

int Schedule::registersPerThread(const Problem &problem, const Target &target, KernelRole role) const {
  if (familyOf(problem, target, role) == KernelFamily::Sm90) return sm90Registers(*this, problem);
  return target.isCpu() ? 0 : registersOf(*this, problem, role);
}

Status checkFields(const Schedule &schedule) {
  if (Status status = checkTile("tile_q", schedule.tileQ); !status) return status;
  if (Status status = checkTile("tile_kv", schedule.tileKV); !status) return status;
  if (schedule.stages < kStagesRange.low || schedule.stages > kStagesRange.high)
    return fail(Stage::Plan, fmt::format("schedule: stages: expected {} to {}, found {}", kStagesRange.low,
                                         kStagesRange.high, schedule.stages));
  constexpr int kHopperWarps = 12; // three consumer groups
  if (schedule.warps < 1 || schedule.warps > kMaxWarps ||
      (!std::has_single_bit(static_cast<unsigned>(schedule.warps)) && schedule.warps != kHopperWarps))
    return fail(Stage::Plan, fmt::format("schedule: warps: expected 1, 2, 4, 8, {} or {}, found {}", kHopperWarps,
                                         kMaxWarps, schedule.warps));
  if (schedule.columnWarps != 1 && schedule.columnWarps != 2 && schedule.columnWarps != 4)
    return fail(Stage::Plan, fmt::format("schedule: column_warps: expected 1, 2 or 4, found {}", schedule.columnWarps));
  if (schedule.blocksPerSM < 1 || schedule.blocksPerSM > 8)
    return fail(Stage::Plan, fmt::format("schedule: blocks_per_sm: expected 1 to 8, found {}", schedule.blocksPerSM));
  if (schedule.splitKV < kSplitRange.low || schedule.splitKV > kSplitRange.high)
    return fail(Stage::Plan, fmt::format("schedule: split_kv: expected {} to {}, found {}", kSplitRange.low,
                                         kSplitRange.high, schedule.splitKV));
  if (!(schedule.rescaleThreshold >= 0 && schedule.rescaleThreshold <= kMaxRescaleThreshold))
    return fail(Stage::Plan,
                fmt::format("schedule: rescale_threshold: expected 0 to {}, found {}", kMaxRescaleThreshold,
                            schedule.rescaleThreshold),
                "exp2 of the threshold is how much larger than 1 a term of the sum may become");
  return {};
}

ScheduleLimit Schedule::brokenLimit(const Problem &problem, const Target &target, KernelRole role) const {
  if (validate(problem, target, role)) return ScheduleLimit::None;
  if (target.isCpu() || !checkFields(*this) || !checkCudaForm(*this, problem, target, role)) return ScheduleLimit::Form;
  return sharedBytes(problem, target, role) > target.sharedBytesPerBlock ? ScheduleLimit::SharedMemory
                                                                         : ScheduleLimit::Registers;
}

Status checkFused(const Problem &problem, const Target &target) {
  if (target.isCpu())
    return fail(Stage::Plan, "backward: fused kernels are CUDA's; the cpu target computes gradients by two_kernel",
                "leave backward out, or set backward=two_kernel");
  if (problem.dtype == DType::F32)
    return fail(Stage::Plan, "backward: fused kernels take bf16 and fp16, found fp32",
                "leave backward out, or set backward=two_kernel");
  return {};
}

Status checkSplit(const Schedule &schedule, const Problem &problem, const Target &target, KernelRole role) {
  const bool splits = role == KernelRole::Forward || role == KernelRole::Merge;
  const KernelFamily family = familyOf(problem, target, KernelRole::Forward);
  if (!splits && schedule.splitKV != 1)
    return refuse(role, fmt::format("split_kv: only forward splits its keys, found {}", schedule.splitKV),
                  fmt::format("forward.split_kv={} sets it for forward alone", schedule.splitKV));
  if (role == KernelRole::Merge && schedule.splitKV == 1)
    return refuse(role, "split_kv: expected at least 2, found 1", "a forward in one part leaves nothing to merge");
  if (family == KernelFamily::Sm80 && schedule.splitKV != 1)
    return refuse(role,
                  fmt::format("split_kv: a block of a {} kernel visits all keys of its queries (1), found {}",
                              target.name, schedule.splitKV),
                  "leave it out; sm_90a in bf16 and fp16, and the cpu target, split keys");
  if (!schedule.packHeads) return {};
  if (!splits || family != KernelFamily::Sm90)
    return refuse(role, "pack_heads: expected false, found true",
                  "only the forward kernel of sm_90a in bf16 and fp16 packs heads");
  const int64_t group = problem.groupSize();
  if (group == 1 || group > schedule.tileQ)
    return refuse(
        role, fmt::format("pack_heads: expected 2 to tile_q={} query heads a kv head, found {}", schedule.tileQ, group),
        "leave it out");
  if (problem.maskReadsHead())
    return refuse(role, "pack_heads: the mask differs between heads, so they cannot share tiles", "leave it out");
  return {};
}

Status checkNoOverlap(const Schedule &schedule, KernelRole role) {
  if (schedule.overlap == Overlap::None) return {};
  return refuse(role, fmt::format("overlap: expected none, found {}", nameOf(schedule.overlap)),
                "only the forward kernel of sm_90a in bf16 and fp16 overlaps");
}

Status checkCpu(const Schedule &schedule, const Problem &problem, KernelRole role) {
  if (role == KernelRole::Fused || role == KernelRole::Convert)
    if (Status status = checkFused(problem, Target()); !status) return status;
  if (Status status = checkSplit(schedule, problem, Target(), role); !status) return status;
  for (auto [field, value] :
       {std::pair{"stages", schedule.stages}, std::pair{"warps", schedule.warps},
        std::pair{"column_warps", schedule.columnWarps}, std::pair{"blocks_per_sm", schedule.blocksPerSM}})
    if (value != 1)
      return fail(Stage::Plan, fmt::format("schedule: {}: the cpu target has 1, found {}", field, value),
                  "stages, warps and blocks are about GPUs");
  if (schedule.rescaleThreshold != 0)
    return fail(Stage::Plan,
                fmt::format("schedule: rescale_threshold: the cpu target rescales at every tile (0), found {}",
                            schedule.rescaleThreshold),
                "leave it out");
  return checkNoOverlap(schedule, role);
}

Status checkCudaForm(const Schedule &schedule, const Problem &problem, const Target &target, KernelRole role) {
  if (Status status = checkDims(problem, target); !status) return status;
  if (Status status = checkSplit(schedule, problem, target, role); !status) return status;
  if (role == KernelRole::Delta || role == KernelRole::Merge) return {};
  if (role == KernelRole::Fused || role == KernelRole::Convert)
    if (Status status = checkFused(problem, target); !status) return status;
  for (auto [field, tile] : {std::pair{"tile_q", schedule.tileQ}, std::pair{"tile_kv", schedule.tileKV}})
    if (tile > kMaxCudaTile)
      return refuse(
          role, fmt::format("{}: {} kernels take tiles up to {}, found {}", field, target.name, kMaxCudaTile, tile));
  if (familyOf(problem, target, role) == KernelFamily::Sm90) return checkSm90Form(schedule, target);
  if (Status status = checkNoOverlap(schedule, role); !status) return status;
  if (!std::has_single_bit(static_cast<unsigned>(schedule.warps)))
    return refuse(role, fmt::format("warps: expected 1, 2, 4, 8 or {}, found {}", kMaxWarps, schedule.warps));
  if (Status status = role == KernelRole::Convert ? checkConvert(schedule) : checkWarps(schedule, problem, role);
      !status)
    return status;
  if (int threads = 32 * schedule.warps; threads > target.maxThreadsPerBlock)
    return refuse(role, fmt::format("warps={} are {} threads a block; {} has at most {}", schedule.warps, threads,
                                    target.name, target.maxThreadsPerBlock));
  return {};
}

Status checkCuda(const Schedule &schedule, const Problem &problem, const Target &target, KernelRole role) {
  if (Status status = checkCudaForm(schedule, problem, target, role); !status || role == KernelRole::Delta)
    return status;
  if (familyOf(problem, target, role) == KernelFamily::Sm90) return checkSm90Room(schedule, problem, target);
  const int threads = 32 * schedule.warps;
  std::string lower =
      fmt::format("lower tile_q, tile_kv or stages; for this kernel alone: {}.tile_kv=...", toString(role));
  if (int64_t bytes = schedule.sharedBytes(problem, target, role); bytes > target.sharedBytesPerBlock)
    return refuse(role,
                  fmt::format("shared memory: tile_q={}, tile_kv={}, stages={} need {} bytes a block; {} has {}",
                              schedule.tileQ, schedule.tileKV, schedule.stages, bytes, target.name,
                              target.sharedBytesPerBlock),
                  lower);
  int64_t available =
      std::min<int64_t>(target.registersPerThread, target.registersPerSM / (threads * schedule.blocksPerSM) / 8 * 8);
  if (int registers = registersOf(schedule, problem, role); registers > available)
    return refuse(role,
                  fmt::format("registers: tile_q={}, tile_kv={}, warps={} need about {} a thread; {} has {} at {} "
                              "threads a block, {} blocks an SM",
                              schedule.tileQ, schedule.tileKV, schedule.warps, registers, target.name, available,
                              threads, schedule.blocksPerSM),
                  "more warps or smaller tiles leave each thread fewer accumulators");
  return {};
}

} // namespace tilewright
