#include "Candidates.h"
#include "tilewright/plan/KernelPlan.h"
#include <algorithm>
#include <set>
#include <tuple>

namespace tilewright::tune {
namespace {

/// Calls `visit` with every combination.
template <class Visit> void forEachSchedule(const TuningSpace &space, Visit visit) {
  Schedule s;
  for (int tileQ : space.tileQ)
    for (int tileKV : space.tileKV)
      for (int stages : space.stages)
        for (int warps : space.warps)
          for (int columnWarps : space.columnWarps)
            for (int blocksPerSM : space.blocksPerSM)
              for (int splitKV : space.splitKV)
                for (Order order : space.orders)
                  for (Overlap overlap : space.overlaps)
                    for (double threshold : space.rescaleThresholds)
                      for (bool packHeads : space.packings) {
                        s.tileQ = tileQ;
                        s.tileKV = tileKV;
                        s.stages = stages;
                        s.warps = warps;
                        s.columnWarps = columnWarps;
                        s.blocksPerSM = blocksPerSM;
                        s.splitKV = splitKV;
                        s.order = order;
                        s.overlap = overlap;
                        s.rescaleThreshold = threshold;
                        s.packHeads = packHeads;
                        visit(s);
                      }
}

/// Brings tiles of every size and every way to share keys forward: of candidates that differ in other fields alone,
/// which the model hardly tells apart, the second counts as 4 % slower than its estimate, the third as 8 %, and so on.
void spread(std::vector<Candidate>::iterator begin, std::vector<Candidate>::iterator end) {
  std::map<std::tuple<int, int, int, bool>, int> before;
  std::vector<std::pair<double, Candidate>> ranked;
  for (auto candidate = begin; candidate != end; ++candidate) {
    const Schedule &s = candidate->schedule;
    const int others = before[{s.tileQ, s.tileKV, s.splitKV, s.packHeads}]++;
    ranked.emplace_back(candidate->estimate * (1 + 0.04 * others), *candidate);
  }
  std::ranges::stable_sort(ranked, {}, &std::pair<double, Candidate>::first);
  for (auto &[rank, candidate] : ranked)
    *begin++ = candidate;
}

PruneReason reasonOf(ScheduleLimit limit) {
  return limit == ScheduleLimit::SharedMemory ? PruneReason::SharedMemory
         : limit == ScheduleLimit::Registers  ? PruneReason::Registers
                                              : PruneReason::Form;
}

} // namespace

std::string_view toString(PruneReason reason) {
  switch (reason) {
  case PruneReason::Form:
    return "form";
  case PruneReason::SharedMemory:
    return "shared_memory";
  case PruneReason::Registers:
    return "registers";
  case PruneReason::CostModel:
    return "cost_model";
  }
  return "unknown reason";
}

Expected<CandidateList> candidatesOf(const Problem &problem, const Target &target, KernelRole role,
                                     const CandidateOptions &options, VisitCount visits) {
  Expected<KernelPlan> byDefault = KernelPlan::make(problem, target, role, options.overrides);
  if (!byDefault) return propagate(byDefault);
  TuningSpace space = TuningSpace::of(problem, target, role);
  options.ranges.apply(role, space);

  CandidateList list;
  std::set<std::string> seen; // fields that are fixed make combinations equal
  const CostModel model(problem, target, role, std::move(visits));
  auto consider = [&](const Schedule &schedule) {
    if (!seen.insert(schedule.canonicalText()).second) return;
    ++list.considered;
    if (ScheduleLimit limit = schedule.brokenLimit(problem, target, role); limit != ScheduleLimit::None)
      ++list.pruned[reasonOf(limit)];
    else
      list.kept.push_back({schedule, model.cost(schedule)});
  };
  consider(byDefault->schedule);
  Status applied;
  forEachSchedule(space, [&](Schedule schedule) {
    if (Status status = options.overrides.apply(role, schedule); !status)
      applied = status;
    else
      consider(schedule);
  });
  if (!applied) return propagate(applied);

  std::stable_sort(list.kept.begin() + 1, list.kept.end(),
                   [](const Candidate &a, const Candidate &b) { return a.estimate < b.estimate; });
  const double best = std::ranges::min_element(list.kept, {}, &Candidate::estimate)->estimate;
  for (Candidate &candidate : list.kept)
    candidate.estimate = best > 0 ? candidate.estimate / best : 1;
  const auto tooSlow = std::stable_partition(list.kept.begin() + 1, list.kept.end(), [&](const Candidate &candidate) {
    return candidate.estimate <= options.slowest;
  });
  spread(list.kept.begin() + 1, tooSlow);
  const size_t count = std::min(static_cast<size_t>(tooSlow - list.kept.begin()), std::max<size_t>(options.most, 1));
  if (count < list.kept.size()) list.pruned[PruneReason::CostModel] = list.kept.size() - count;
  list.kept.resize(count);
  return list;
}

} // namespace tilewright::tune
