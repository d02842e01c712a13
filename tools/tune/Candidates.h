// The candidates of one kernel: every combination of its space, less what limits and the cost model leave out before
// anything is compiled.
#pragma once

#include "CostModel.h"
#include "TuningSpace.h"
#include <map>

namespace tilewright::tune {

enum class PruneReason { Form, SharedMemory, Registers, CostModel };
std::string_view toString(PruneReason reason); ///< "form", "shared_memory", "registers", "cost_model"

struct Candidate {
  Schedule schedule;
  double estimate = 1; ///< The model's, relative to the best candidate's.
};

struct CandidateList {
  std::vector<Candidate> kept; ///< The default first, then the likeliest, with tiles of many sizes among the first.
  size_t considered = 0;       ///< Different schedules of the space, with the default.
  std::map<PruneReason, size_t> pruned;
};

struct CandidateOptions {
  ScheduleOverrides overrides; ///< Fields that are fixed.
  RangeOverrides ranges;
  double slowest = 1.8; ///< Estimates above this multiple of the best one are left out.
  size_t most = 48;     ///< Candidates of one kernel. The default counts, and is always kept.
};

/// Fails where not even a default exists: the target's limits leave no schedule that fits the problem.
Expected<CandidateList> candidatesOf(const Problem &problem, const Target &target, KernelRole role,
                                     const CandidateOptions &options, VisitCount visits);

} // namespace tilewright::tune
