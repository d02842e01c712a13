#include "tilewright/plan/KernelPlan.h"
#include "JsonObject.h"
#include "ScheduleLimits.h"
#include <fmt/format.h>

namespace tilewright {

Expected<KernelPlan> KernelPlan::make(const Problem &problem, const Target &target, KernelRole role,
                                      const ScheduleOverrides &overrides) {
  // First, since defaults want a valid problem, and its errors are the ones to see.
  if (Status status = problem.validate(); !status) return propagate(status);
  if (role == KernelRole::Convert) { // reads the sums where Fused puts them
    Expected<KernelPlan> fused = make(problem, target, KernelRole::Fused, overrides);
    if (!fused) return fused;
    KernelPlan plan{problem, convertScheduleOf(fused->schedule), target, role};
    if (Status status = plan.validate(); !status) return propagate(status);
    return plan;
  }
  if (role == KernelRole::Merge) { // reads the states where Forward puts them
    Expected<KernelPlan> forward = make(problem, target, KernelRole::Forward, overrides);
    if (!forward) return forward;
    KernelPlan plan{problem, mergeScheduleOf(forward->schedule, target), target, role};
    if (Status status = plan.validate(); !status) return propagate(status);
    return plan;
  }
  // Fields that the user leaves open follow those that are set: the best default that fits them, and if none does, with
  // as many warps as its rows take.
  Status first;
  for (bool warpsFollow : {false, true}) {
    if (warpsFollow && target.isCpu()) break; // it has one
    first = {};
    for (const Schedule &candidate : candidates(problem, target, role)) {
      KernelPlan plan{problem, candidate, target, role};
      if (Status status = overrides.apply(role, plan.schedule); !status) return propagate(status);
      if (warpsFollow) {
        plan.schedule.warps = ownedRows(plan.schedule, role) / kWarpRows * plan.schedule.columnWarps;
        if (plan.schedule.warps <= kWarpsOfGroup && overlapsBetween(plan.schedule.overlap))
          plan.schedule.overlap = overlapsWithin(plan.schedule.overlap) ? Overlap::Intra : Overlap::None;
        if (Status status = overrides.apply(role, plan.schedule); !status) return propagate(status);
      }
      Status status = plan.validate();
      if (status) return plan;
      if (first) first = std::move(status);
    }
  }
  return propagate(first);
}

std::vector<KernelPlan> withFollower(KernelPlan plan) {
  std::vector<KernelPlan> plans = {std::move(plan)};
  KernelPlan follower = plans.front();
  if (follower.role == KernelRole::Fused) {
    follower.role = KernelRole::Convert;
    follower.schedule = convertScheduleOf(plans.front().schedule);
    plans.push_back(std::move(follower));
  } else if (follower.role == KernelRole::Forward && follower.schedule.splitKV > 1) {
    follower.role = KernelRole::Merge;
    follower.schedule = mergeScheduleOf(plans.front().schedule, follower.target);
    plans.push_back(std::move(follower));
  }
  return plans;
}

Status KernelPlan::validate() const {
  if (Status status = problem.validate(); !status) return status;
  const bool forward = role == KernelRole::Forward || role == KernelRole::Merge;
  if (!forward && problem.direction == Direction::Forward)
    return fail(Stage::Plan,
                fmt::format("role: {} computes gradients, but the problem's direction is forward", toString(role)));
  return schedule.validate(problem, target, role);
}

std::string KernelPlan::canonicalText() const {
  std::string text = fmt::format("role={}\ntarget={}\n", toString(role), target.canonicalText());
  // Delta reads O and dO alone: one kernel serves every mask, score and head group.
  if (role == KernelRole::Delta)
    return text + fmt::format("schedule=tile_q={},warps={}\ndim_v={}\ndtype={}\n", schedule.tileQ, schedule.warps,
                              problem.dimV, toString(problem.dtype));
  // So does Merge with states.
  if (role == KernelRole::Merge)
    return text + fmt::format("schedule=tile_q={},split_kv={},warps={},packed_heads={}\ndim_v={}\ndtype={}\n",
                              schedule.tileQ, schedule.splitKV, schedule.warps, packedHeads(schedule, problem),
                              problem.dimV, toString(problem.dtype));
  // Convert reads sums, whatever they are the sums of; to centre them it needs the mask too.
  if (role == KernelRole::Convert && !centresSums(problem))
    return text + fmt::format("schedule=tile_q={},column_warps={}\ndim_qk={}\ndtype={}\ngroup={}\nsum_columns={}\n",
                              schedule.tileQ, schedule.columnWarps, problem.dimQK, toString(problem.dtype),
                              problem.groupSize(), sumColumns(schedule, problem));
  return text + fmt::format("schedule={}\n", schedule.canonicalText()) + problem.constantsText();
}

std::string KernelPlan::hash() const { return sha256Hex(canonicalText()); }

std::string KernelPlan::symbol() const {
  std::string dims = problem.dimQK == problem.dimV ? fmt::format("d{}", problem.dimQK)
                                                   : fmt::format("d{}x{}", problem.dimQK, problem.dimV);
  if (role == KernelRole::Convert) dims = fmt::format("d{}", problem.dimQK);
  if (role == KernelRole::Delta || role == KernelRole::Merge) dims = fmt::format("d{}", problem.dimV);
  std::string tiles = fmt::format("m{}n{}s{}w{}", schedule.tileQ, schedule.tileKV, schedule.stages, schedule.warps);
  if (schedule.splitKV > 1) tiles += fmt::format("p{}", schedule.splitKV);
  if (schedule.packHeads) tiles += fmt::format("g{}", problem.groupSize());
  if (role == KernelRole::Merge) tiles = fmt::format("m{}p{}", schedule.tileQ, schedule.splitKV);
  if (role == KernelRole::Convert) tiles = fmt::format("m{}c{}", schedule.tileQ, schedule.columnWarps);
  if (role == KernelRole::Delta) tiles = fmt::format("m{}w{}", schedule.tileQ, schedule.warps);
  return fmt::format("tw_{}_{}_{}_{}_{}", toString(role), toString(problem.dtype), dims, tiles, hash().substr(0, 8));
}

void to_json(nlohmann::json &json, const KernelPlan &plan) {
  json = nlohmann::json{
      {"problem", plan.problem}, {"schedule", plan.schedule}, {"target", plan.target}, {"role", toString(plan.role)}};
}

Expected<KernelPlan> kernelPlanFromJson(const nlohmann::json &json) {
  KernelPlan plan;
  JsonObject object(json, "plan");
  // The parts name themselves in their errors.
  auto part = [&](const char *key, auto &value, auto parse) -> Status {
    const nlohmann::json *found = object.find(key);
    if (!found) {
      object.refuse(key, "missing");
      return {};
    }
    auto parsed = parse(*found);
    if (!parsed) return propagate(parsed);
    value = std::move(*parsed);
    return {};
  };
  if (Status status = part("problem", plan.problem, problemFromJson); !status) return propagate(status);
  if (Status status = part("schedule", plan.schedule, scheduleFromJson); !status) return propagate(status);
  if (Status status = part("target", plan.target, targetFromJson); !status) return propagate(status);
  object.readName("role", plan.role, parseKernelRole);
  if (Status status = object.finish(); !status) return propagate(status);
  if (Status status = plan.validate(); !status) return propagate(status);
  return plan;
}

} // namespace tilewright
