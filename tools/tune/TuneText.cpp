// The report as text for a terminal.
#include "TuneReport.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>

namespace tilewright::tune {
namespace {

constexpr size_t kFailuresShown = 8;

std::string prunedText(const CandidateList &list) {
  constexpr std::pair<PruneReason, const char *> names[] = {{PruneReason::Form, "that do not divide"},
                                                            {PruneReason::SharedMemory, "over shared memory"},
                                                            {PruneReason::Registers, "over registers"},
                                                            {PruneReason::CostModel, "by the cost model"}};
  std::vector<std::string> parts;
  for (const auto &[reason, name] : names)
    if (auto found = list.pruned.find(reason); found != list.pruned.end())
      parts.push_back(fmt::format("{} {}", found->second, name));
  return parts.empty() ? "none left out" : fmt::format("left out {}", fmt::join(parts, ", "));
}

void addKernel(std::string &text, const TuneReport &report, const ProblemReport &problem, const KernelReport &kernel) {
  auto out = std::back_inserter(text);
  const TunedCandidate *winner = kernel.winner(), *before = kernel.defaultRow();
  fmt::format_to(out, "  {:<8}", toString(kernel.role));
  if (!winner) {
    fmt::format_to(out, " no winner\n");
  } else {
    const double rate = kernelFlops(problem, kernel.role) / (winner->ms * 1e-3);
    const auto peak = matrixPeak(report.target, kernel.problem.dtype, winner->clockMhz);
    fmt::format_to(
        out, " {:>10} {:>10.4f} {:>7} {:>9.3f} {:>7}  {}\n", before ? fmt::format("{:.4f}", before->ms) : "-",
        winner->ms, before ? fmt::format("{:.3f}x", kernel.gain()) : "-", rate * 1e-12,
        peak ? fmt::format("{:.0f} %", 100 * rate / *peak) : "-", differenceText(winner->schedule, kernel.byDefault));
  }
}

void addCounts(std::string &text, const KernelReport &kernel) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, "  {:<8} {} combinations, {}; {} candidates: {} measured now, {} known before",
                 toString(kernel.role), kernel.list.considered, prunedText(kernel.list), kernel.list.kept.size(),
                 kernel.measured, kernel.reused);
  if (kernel.left()) fmt::format_to(out, ", {} left", kernel.left());
  for (const auto &[outcome, count] : outcomesOf(kernel))
    if (outcome != TuningOutcome::Ok) fmt::format_to(out, ", {} {}", count, toString(outcome));
  text += '\n';
}

void addFailures(std::string &text, const ProblemReport &problem) {
  size_t shown = 0, all = 0;
  for (const KernelReport &kernel : problem.kernels)
    for (const TunedCandidate &row : kernel.rows) {
      // Spills are what the limits could not foresee: counted above, of no interest one by one.
      if (row.outcome == TuningOutcome::Ok || row.outcome == TuningOutcome::Spills) continue;
      ++all;
      if (shown == kFailuresShown) continue;
      ++shown;
      fmt::format_to(std::back_inserter(text), "  {} {}  {}: {}\n", toString(kernel.role), row.schedule.canonicalText(),
                     toString(row.outcome), row.detail);
    }
  if (all > shown)
    fmt::format_to(std::back_inserter(text), "  and {} more that failed (--json has all)\n", all - shown);
}

void addTotals(std::string &text, const TuneReport &report) {
  double logs = 0, worst = 0;
  size_t count = 0;
  for (const ProblemReport &problem : report.problems)
    for (Direction direction : {Direction::Forward, Direction::Backward}) {
      const auto before = problem.defaultMs(direction, report.target), after = problem.tunedMs(direction);
      if (!before || !after) continue;
      const double gain = *before / *after;
      worst = count++ ? std::min(worst, gain) : gain;
      logs += std::log(gain);
    }
  if (count > 1)
    fmt::format_to(std::back_inserter(text),
                   "tuned over default: geometric mean {:.3f}x of {} (directions of problems), least {:.3f}x\n",
                   std::exp(logs / static_cast<double>(count)), count, worst);
}

void addCandidates(std::string &text, const KernelReport &kernel) {
  for (const Candidate &candidate : kernel.list.kept)
    fmt::format_to(std::back_inserter(text), "    {:>6.2f}  {}\n", candidate.estimate,
                   candidate.schedule.canonicalText());
}

} // namespace

std::string toText(const TuneReport &report) {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{} on {}; {}\n", report.environment.target,
                 report.environment.device.empty() ? "no device" : report.environment.device,
                 report.environment.policy);
  for (const ProblemReport &problem : report.problems) {
    fmt::format_to(out, "\n{}{}\n", problemText(problem.problem),
                   problem.seconds >= 0.5 ? fmt::format(", {:.0f} s", problem.seconds) : "");
    if (!problem.failure.empty()) {
      fmt::format_to(out, "  not measured: {}\n", problem.failure);
      continue;
    }
    if (report.dryRun) {
      for (const KernelReport &kernel : problem.kernels) {
        addCounts(text, kernel);
        addCandidates(text, kernel);
      }
      continue;
    }
    fmt::format_to(out, "  {:<8} {:>10} {:>10} {:>7} {:>9} {:>7}  {}\n", "kernel", "default ms", "winner ms", "gain",
                   "TFLOP/s", "of peak", "winner: what differs from the default");
    for (const KernelReport &kernel : problem.kernels)
      addKernel(text, report, problem, kernel);
    if (const auto strategy = problem.strategy(); strategy && problem.kernels.size() > 3)
      fmt::format_to(out, "  gradients are faster by {}\n", toString(*strategy));
    for (const KernelReport &kernel : problem.kernels)
      addCounts(text, kernel);
    addFailures(text, problem);
  }
  if (!report.dryRun) {
    text += '\n';
    addTotals(text, report);
  }
  if (report.unsaved) fmt::format_to(out, "{} measurements could not be written into the store\n", report.unsaved);
  if (report.interrupted) text += "interrupted: what was measured is kept, the same command goes on from here\n";
  return text;
}

} // namespace tilewright::tune
