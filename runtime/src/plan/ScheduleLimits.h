// What a schedule may be: field ranges, and the shared memory and registers that the kernel families take. The formulas
// mirror the tiles that the CUDA templates declare; whoever changes one changes both.
#pragma once

#include "tilewright/plan/Schedule.h"

namespace tilewright {

/// Accepted range and granularity of an integer field of Schedule.
struct FieldRange {
  int low, high, step;
};

inline constexpr FieldRange kTileRange{16, 1024, 16}; ///< Rows; the step is mma's and kTableExtentTile
inline constexpr FieldRange kStagesRange{1, 8, 1};
inline constexpr FieldRange kSplitRange{1, 1024, 1};
inline constexpr int kMaxWarps = 16; ///< A power of two from 1
inline constexpr double kMaxRescaleThreshold = 16;
/// Rows of one mma.sync.m16n8k16 tile, the fewest a warp can own.
inline constexpr int kWarpRows = 16;
inline constexpr int kWarpsOfGroup = 4; ///< Hopper: warps that issue a wgmma together.
/// Head dims and tiles of the CUDA kernels.
inline constexpr int64_t kMaxCudaHeadDim = 256, kCudaDimStep = 8;
inline constexpr int kMaxCudaTile = 256;

/// How a block's warps share the rows it owns.
struct WarpGrid {
  int rowGroups = 1;    ///< Warps along the owned rows
  int columnGroups = 1; ///< DKV, Fused: warps that share rows and split the columns of their products
};

/// True for the roles whose blocks own kv rows: DKV and Fused.
bool ownsKV(KernelRole role);
/// Rows of the tile a block owns: tileQ, or tileKV where it owns kv rows.
int ownedRows(const Schedule &schedule, KernelRole role);
WarpGrid warpGrid(const Schedule &schedule);

/// dQ has whole fragments for each column warp, as dK does beside which it is computed.
int64_t paddedDimQK(const Schedule &schedule, const Problem &problem);
/// Whether dQ is taken relative to the keys' mean (templates/sm80/Centre.cuh): not through a score function.
bool centresSums(const Problem &problem);
/// fp32 columns of a row of dQ's sums: a score function spares the row sums that centring needs
/// (templates/sm80/Centre.cuh).
int64_t sumColumns(const Schedule &schedule, const Problem &problem);

/// Ranges of the fields on their own, whatever the target; the first broken one as an error.
Status checkFields(const Schedule &schedule);
Status checkCpu(const Schedule &schedule, const Problem &problem, KernelRole role);
/// Whether a target and a problem's dtype have the fused backward.
Status checkFused(const Problem &problem, const Target &target);
/// Hopper's forward: whether its warp groups can share the tile, and whether a block has room for it.
Status checkSm90Form(const Schedule &schedule, const Target &target);
Status checkSm90Room(const Schedule &schedule, const Problem &problem, const Target &target);
/// Whether a schedule is one that a kernel can be made of, whatever room it takes.
Status checkCudaForm(const Schedule &schedule, const Problem &problem, const Target &target, KernelRole role);
Status checkCuda(const Schedule &schedule, const Problem &problem, const Target &target, KernelRole role);

/// Schedules to start from, best first; not all are within the target's limits. Never empty.
std::vector<Schedule> candidates(const Problem &problem, const Target &target, KernelRole role);
/// What a Hopper forward kernel leaves registers for beside its products: nothing, a score function, or classifying
/// tiles as well.
enum class Sm90Room { None, Score, Classes };
/// The same for the Hopper forward, of those schedules that leave room for what is needed.
std::vector<Schedule> sm90Candidates(const Problem &problem, const Target &target, Sm90Room needed);
/// Registers a consumer's thread needs, estimated from its accumulators.
int sm90Registers(const Schedule &schedule, const Problem &problem);
/// Convert's schedule for the sums of a Fused kernel: the layout is in tileQ and columnWarps.
Schedule convertScheduleOf(const Schedule &fused);
/// Merge's schedule for the states of a split Forward: their layout is in tileQ, splitKV and packHeads.
Schedule mergeScheduleOf(const Schedule &forward, const Target &target);
/// Whether a problem's kernels on a target split keys and pack heads.
Status checkSplit(const Schedule &schedule, const Problem &problem, const Target &target, KernelRole role);

} // namespace tilewright
