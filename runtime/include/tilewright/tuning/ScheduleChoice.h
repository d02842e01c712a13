// Which schedules a problem gets: measured ones where the tuned store has them, else the defaults; and which of these.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/plan/KernelPlan.h"
#include "tilewright/tuning/TunedStore.h"

namespace tilewright TILEWRIGHT_PUBLIC {

class Context;

enum class ScheduleOrigin {
  Default, ///< Nothing was measured that fits: Schedule::defaultFor and what the user set.
  Nearest, ///< The fastest of the nearest problem that was measured: same family, other batch or lengths.
  Exact,   ///< The fastest that was measured for this problem.
};

std::string_view toString(ScheduleOrigin origin); ///< "default", "nearest", "exact"

/// A problem further away than this (TuningSizes::distanceTo) says nothing: a self-attention of twice the length is 2.
inline constexpr double kFarthestTuned = 2;
/// Medians that differ by less are the same: the default is kept.
inline constexpr double kTuningTie = 0.01;

struct PlanChoice {
  KernelPlan plan;
  ScheduleOrigin origin = ScheduleOrigin::Default;
  std::string from; ///< Sizes of the nearest problem: "b2 h16 q1024 kv1024"; empty otherwise.
};

/// What to look up and where. Without a store everything is default.
struct TunedLookup {
  std::shared_ptr<TunedStore> store;
  /// This machine. An empty device or compiler matches any. Rows of another generator or compiler are stale: ignored,
  /// with one warning. Rows of this driver go before those of others, those timed by the default policy before others.
  TuningEnvironment here;
};

/// The plans of a problem's kernels in launch order: forward (and merge), then for Direction::Backward the gradients'.
/// Among what was measured only schedules count that have the fields set by `overrides` as they are set there. The
/// gradients' strategy is the faster one where both were measured together, else the default one.
Expected<std::vector<PlanChoice>> choosePlans(const Problem &problem, const Target &target,
                                              const ScheduleOverrides &overrides = {}, const TunedLookup &tuned = {});

/// The fastest candidate of one kernel, and for Convert or Merge of the one it goes with; nullopt where nothing was
/// measured that is valid here.
struct TunedChoice {
  TunedCandidate candidate;
  ScheduleOrigin origin = ScheduleOrigin::Exact;
};
std::optional<TunedChoice> fastestTuned(const Problem &problem, const Target &target, KernelRole role,
                                        const ScheduleOverrides &overrides, const TunedLookup &tuned);

/// The winner among candidates of one problem, role and environment: the fastest of those that were confirmed, or of
/// all where none was; the default where it is as fast. Null where none is Ok.
const TunedCandidate *winnerOf(std::span<const TunedCandidate> candidates, const Schedule &defaultSchedule);

/// Where `context` measures and runs plans for a target; the policy is the target's default one. Opens the device.
/// Without a device of a CUDA target what is unknown stays empty.
TuningEnvironment tuningEnvironment(Context &context, const Target &target, int device = 0);

} // namespace tilewright
