// What a tuning found, as plain values, and its forms: JSON, a table, an HTML page.
#pragma once

#include "Candidates.h"
#include "tilewright/tuning/ScheduleChoice.h"
#include <nlohmann/json_fwd.hpp>

namespace tilewright::tune {

/// One kernel of a problem.
struct KernelReport {
  Problem problem; ///< With the direction of the kernel's own role.
  KernelRole role = KernelRole::Forward;
  Schedule byDefault;
  CandidateList list;
  std::vector<TunedCandidate> rows; ///< Of the list's candidates, those that have one.
  size_t reused = 0;                ///< Rows that were in the store before.
  size_t measured = 0;              ///< Candidates that this run measured, or tried to.

  /// Candidates without a row: there was no time, or an interrupt.
  size_t left() const { return list.kept.size() - rows.size(); }
  const TunedCandidate *row(const Schedule &schedule) const;
  TunedCandidate *row(const Schedule &schedule);
  const TunedCandidate *defaultRow() const; ///< Null unless it is Ok.
  const TunedCandidate *winner() const;     ///< winnerOf(); null without any that is Ok.
  /// Time of the default over the winner's; 1 where the default won or is unknown.
  double gain() const;
};

struct ProblemReport {
  Problem problem;
  std::vector<std::string> tableFiles; ///< In the order of Problem::tables.
  std::string failure;                 ///< Why nothing could be measured; empty otherwise.
  std::vector<KernelReport> kernels;
  double visiblePairs = 0; ///< Over all heads and batch entries.
  double seconds = 0;      ///< That this run spent on it.

  const KernelReport *kernel(KernelRole role) const;
  /// The faster strategy of the gradients by the winners' times; nullopt without gradients or winners.
  std::optional<Backward> strategy() const;
  /// Milliseconds of all kernels that were tuned: by default, or with each one's winner and the faster strategy.
  /// nullopt where one is unknown.
  std::optional<double> defaultMs(Direction direction, const Target &target) const;
  std::optional<double> tunedMs(Direction direction) const;
  bool hasWinners() const;
};

struct TuneReport {
  TuningEnvironment environment;
  Target target;
  std::string started; ///< Local time, "2026-01-31 12:00:00".
  std::string store;   ///< The file; empty for a dry run.
  std::vector<ProblemReport> problems;
  bool interrupted = false;
  bool dryRun = false;
  size_t unsaved = 0; ///< Rows that could not be written.

  /// Every kernel of every problem has one.
  bool hasWinners() const;
};

/// FLOPs of one kernel by the field's convention: 4 * pairs * (dqk + dv) / 2 forward, 5/7 and 2/7... see the source.
double kernelFlops(const ProblemReport &problem, KernelRole role);
/// What the matrix units do at a clock, in FLOP/s; nullopt where it is not known (CPUs, fp32).
std::optional<double> matrixPeak(const Target &target, DType dtype, double clockMhz);
/// "b2 h16:4 q4096 kv4096 d128 bf16 causal"
std::string problemText(const Problem &problem);
/// How many rows ended in each way, those without any left out.
std::map<TuningOutcome, size_t> outcomesOf(const KernelReport &kernel);
/// The fields of a schedule that differ from another's: "tile_kv=64 stages=3"; "the default" where none does.
std::string differenceText(const Schedule &schedule, const Schedule &from);

nlohmann::json toJson(const TuneReport &report);
std::string toText(const TuneReport &report);
/// Self-contained: loads nothing from anywhere.
std::string toHtml(const TuneReport &report);

} // namespace tilewright::tune
