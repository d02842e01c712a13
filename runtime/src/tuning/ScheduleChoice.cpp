#include "tilewright/tuning/ScheduleChoice.h"
#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace tilewright {
namespace {

bool matches(const std::string &here, const std::string &there) { return here.empty() || here == there; }

bool isStale(const TuningEnvironment &there, const TuningEnvironment &here) {
  return there.generator != here.generator || !matches(here.compiler, there.compiler);
}

/// The problem as a kernel of this role sees it: forward is the same with and without gradients.
Problem problemOf(Problem problem, KernelRole role) {
  const bool forward = role == KernelRole::Forward || role == KernelRole::Merge;
  problem.direction = forward ? Direction::Forward : Direction::Backward;
  return problem;
}

bool agrees(const Schedule &schedule, const ScheduleOverrides &overrides, KernelRole role) {
  Schedule set = schedule;
  return overrides.apply(role, set) && set == schedule;
}

/// The candidates of the environment to go by, out of those timed anywhere for one problem.
std::vector<TunedCandidate> bestEnvironment(std::vector<TunedCandidate> timed, const TunedLookup &tuned,
                                            bool &anyStale) {
  std::map<TuningEnvironment, std::vector<TunedCandidate>> groups;
  for (TunedCandidate &candidate : timed) {
    if (!matches(tuned.here.device, candidate.environment.device)) continue;
    if (isStale(candidate.environment, tuned.here)) {
      anyStale = true;
      continue;
    }
    groups[candidate.environment].push_back(std::move(candidate));
  }
  auto rank = [&](const auto &group) {
    int64_t newest = 0;
    for (const TunedCandidate &candidate : group.second)
      newest = std::max(newest, candidate.recorded);
    return std::tuple(group.first.driver == tuned.here.driver, group.first.policy == tuned.here.policy, newest);
  };
  auto best = std::max_element(groups.begin(), groups.end(), [&](auto &a, auto &b) { return rank(a) < rank(b); });
  return best == groups.end() ? std::vector<TunedCandidate>() : std::move(best->second);
}

/// The winner for one set of sizes, if anything valid was measured there.
std::optional<TunedCandidate> winnerAt(const Problem &measured, const Problem &wanted, const Target &target,
                                       KernelRole role, const ScheduleOverrides &overrides, const TunedLookup &tuned,
                                       bool &anyStale) {
  auto candidates = bestEnvironment(tuned.store->timed(target.canonicalText(), measured, role), tuned, anyStale);
  std::erase_if(candidates, [&](const TunedCandidate &c) {
    return !agrees(c.schedule, overrides, role) || !c.schedule.validate(wanted, target, role);
  });
  const TunedCandidate *winner = winnerOf(candidates, Schedule::defaultFor(measured, target, role));
  return winner ? std::optional(*winner) : std::nullopt;
}

/// The plan of one kernel, and of the one that goes with it.
Status addChoices(std::vector<PlanChoice> &plans, const Problem &problem, const Target &target, KernelRole role,
                  const ScheduleOverrides &overrides, const TunedLookup &tuned) {
  const Problem own = problemOf(problem, role);
  auto found = fastestTuned(own, target, role, overrides, tuned);
  Expected<KernelPlan> plan = found ? Expected<KernelPlan>({own, found->candidate.schedule, target, role})
                                    : KernelPlan::make(own, target, role, overrides);
  if (!plan) return propagate(plan);
  const ScheduleOrigin origin = found ? found->origin : ScheduleOrigin::Default;
  const bool nearest = origin == ScheduleOrigin::Nearest;
  for (KernelPlan &made : withFollower(std::move(*plan)))
    plans.push_back({std::move(made), origin, nearest ? TuningSizes(found->candidate.problem).text() : std::string()});
  return {};
}

/// The faster strategy where both were measured beside each other.
std::optional<Backward> measuredBackward(const Problem &problem, const Target &target,
                                         const ScheduleOverrides &overrides, const TunedLookup &tuned) {
  std::optional<TunedChoice> found[3];
  const KernelRole roles[] = {KernelRole::DKV, KernelRole::DQ, KernelRole::Fused};
  for (int i = 0; i < 3; ++i) {
    found[i] = fastestTuned(problem, target, roles[i], overrides, tuned);
    if (!found[i]) return std::nullopt;
    if (found[i]->candidate.environment != found[0]->candidate.environment ||
        TuningSizes(found[i]->candidate.problem) != TuningSizes(found[0]->candidate.problem))
      return std::nullopt;
  }
  const double two = found[0]->candidate.ms + found[1]->candidate.ms, fused = found[2]->candidate.ms;
  if (std::abs(two - fused) <= kTuningTie * std::max(two, fused)) return std::nullopt;
  return two < fused ? Backward::TwoKernel : Backward::Fused;
}

} // namespace

std::string_view toString(ScheduleOrigin origin) {
  switch (origin) {
  case ScheduleOrigin::Default:
    return "default";
  case ScheduleOrigin::Nearest:
    return "nearest";
  case ScheduleOrigin::Exact:
    return "exact";
  }
  return "unknown origin";
}

const TunedCandidate *winnerOf(std::span<const TunedCandidate> candidates, const Schedule &defaultSchedule) {
  const bool anyConfirmed = std::ranges::any_of(
      candidates, [](const TunedCandidate &c) { return c.outcome == TuningOutcome::Ok && c.confirmed; });
  const TunedCandidate *fastest = nullptr, *byDefault = nullptr;
  for (const TunedCandidate &c : candidates) {
    if (c.outcome != TuningOutcome::Ok || c.confirmed != anyConfirmed) continue;
    // Equal times are told apart by their text, so that every rank and every run takes the same.
    if (!fastest || c.ms < fastest->ms ||
        (c.ms == fastest->ms && c.schedule.canonicalText() < fastest->schedule.canonicalText()))
      fastest = &c;
    if (c.schedule == defaultSchedule) byDefault = &c;
  }
  return byDefault && byDefault->ms <= fastest->ms * (1 + kTuningTie) ? byDefault : fastest;
}

std::optional<TunedChoice> fastestTuned(const Problem &problem, const Target &target, KernelRole role,
                                        const ScheduleOverrides &overrides, const TunedLookup &tuned) {
  if (!tuned.store) return std::nullopt;
  const Problem own = problemOf(problem, role);
  bool anyStale = false;
  if (auto exact = winnerAt(own, own, target, role, overrides, tuned, anyStale))
    return TunedChoice{std::move(*exact), ScheduleOrigin::Exact};

  const TuningSizes wanted(own);
  std::vector<std::pair<double, TuningSizes>> others;
  for (const TuningSizes &sizes : tuned.store->sizes(target.canonicalText(), own, role))
    if (double distance = wanted.distanceTo(sizes); distance <= kFarthestTuned && sizes != wanted)
      others.emplace_back(distance, sizes);
  std::ranges::sort(others);
  for (const auto &[distance, sizes] : others) {
    Problem near = own;
    near.batch = sizes.batch;
    near.headsQ = sizes.headsQ;
    near.headsKV = sizes.headsKV;
    near.seqQ = sizes.seqQ;
    near.seqKV = sizes.seqKV;
    auto winner = winnerAt(near, own, target, role, overrides, tuned, anyStale);
    if (!winner) continue;
    // Where the default won, this problem's own default is what was confirmed, even if it is another schedule.
    const Schedule ownDefault = Schedule::defaultFor(own, target, role);
    if (winner->schedule == Schedule::defaultFor(near, target, role) && agrees(ownDefault, overrides, role))
      winner->schedule = ownDefault;
    return TunedChoice{std::move(*winner), ScheduleOrigin::Nearest};
  }
  if (anyStale)
    tuned.store->warnOnce("stale", "what was tuned for such problems is of another version of Tilewright or of its "
                                   "compiler and is ignored; `tilewright tune` measures it anew");
  return std::nullopt;
}

Expected<std::vector<PlanChoice>> choosePlans(const Problem &problem, const Target &target,
                                              const ScheduleOverrides &overrides, const TunedLookup &tuned) {
  if (Status status = problem.validate(); !status) return propagate(status);
  std::vector<PlanChoice> plans;
  if (Status status = addChoices(plans, problem, target, KernelRole::Forward, overrides, tuned); !status)
    return propagate(status);
  if (problem.direction == Direction::Forward) return plans;
  Expected<std::vector<KernelRole>> roles = backwardRoles(problem, target, overrides);
  if (!roles) return propagate(roles);
  if (!overrides.backward())
    if (auto measured = measuredBackward(problem, target, overrides, tuned))
      *roles = rolesOf(Direction::Backward, *measured);
  for (KernelRole role : *roles) {
    if (role == KernelRole::Convert) continue; // comes with Fused
    if (Status status = addChoices(plans, problem, target, role, overrides, tuned); !status) return propagate(status);
  }
  return plans;
}

} // namespace tilewright
