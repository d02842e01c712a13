// Tunes problems one after the other: candidates, compiling in parallel, measuring in child processes, and a last round
// among the best and the default.
#pragma once

#include "ResultWriter.h"
#include "TuneProgress.h"
#include "TuneReport.h"
#include "WorkerPool.h"
#include <atomic>

namespace tilewright::tune {

struct TunerOptions {
  CandidateOptions candidates;
  double secondsPerProblem = 55; ///< Candidates that are not measured by then are left for the next run.
  double timeoutSeconds = 20;    ///< Of one candidate's compilation, and of its measurement.
  size_t compilers = 1;          ///< Processes that compile.
  bool coldCaches = true;
  bool retryFailed = false; ///< Measure candidates again that crashed or timed out.
  int device = 0;
};

/// A problem to tune, with the tables that its mask and score read.
struct TuneProblem {
  Problem problem;
  std::vector<std::string> tableFiles; ///< In the order of Problem::tables: workers read them anew.
  std::vector<Table> tables;
};

class Tuner {
public:
  /// `folder` is for this run alone. Measuring ends when `interrupted` becomes true.
  Tuner(TunerOptions options, Target target, TuningEnvironment environment, std::shared_ptr<TunedStore> store,
        std::filesystem::path folder, const std::atomic<bool> &interrupted, TuneProgress &progress);

  /// Which candidates there are, and which of them the store has. `problems` and `index` are for progress.
  ProblemReport plan(const TuneProblem &stated) const;
  /// Measures what is missing. An Error means that no worker can be started.
  Status tune(ProblemReport &report, size_t index, size_t problems);

  /// Writes what could not be written before.
  size_t finish();

private:
  /// One candidate of one kernel.
  struct Item {
    size_t kernel = 0, candidate = 0;
  };

  struct Run; ///< One problem's measuring.

  TunerOptions options;
  Target target;
  TuningEnvironment environment;
  std::shared_ptr<TunedStore> store;
  ResultWriter writer;
  WorkerPool pool; ///< The last slot measures, the others compile.
  const std::atomic<bool> &interrupted;
  TuneProgress &progress;
  double secondsSpent = 0; ///< On the problems before.
};

} // namespace tilewright::tune
