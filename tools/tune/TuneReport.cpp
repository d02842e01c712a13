#include "TuneReport.h"
#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::tune {

const TunedCandidate *KernelReport::row(const Schedule &schedule) const {
  auto found = std::ranges::find(rows, schedule, &TunedCandidate::schedule);
  return found == rows.end() ? nullptr : &*found;
}

TunedCandidate *KernelReport::row(const Schedule &schedule) {
  return const_cast<TunedCandidate *>(std::as_const(*this).row(schedule));
}

const TunedCandidate *KernelReport::defaultRow() const {
  const TunedCandidate *found = row(byDefault);
  return found && found->outcome == TuningOutcome::Ok ? found : nullptr;
}

const TunedCandidate *KernelReport::winner() const { return winnerOf(rows, byDefault); }

double KernelReport::gain() const {
  const TunedCandidate *best = winner(), *before = defaultRow();
  return best && before ? before->ms / best->ms : 1;
}

const KernelReport *ProblemReport::kernel(KernelRole role) const {
  auto found = std::ranges::find(kernels, role, &KernelReport::role);
  return found == kernels.end() ? nullptr : &*found;
}

namespace {

/// The sum of some times, if all are known.
std::optional<double> sumOf(std::initializer_list<const TunedCandidate *> rows) {
  double sum = 0;
  for (const TunedCandidate *row : rows) {
    if (!row) return std::nullopt;
    sum += row->ms;
  }
  return sum;
}

const TunedCandidate *winnerIn(const KernelReport *kernel) { return kernel ? kernel->winner() : nullptr; }
const TunedCandidate *defaultIn(const KernelReport *kernel) { return kernel ? kernel->defaultRow() : nullptr; }

} // namespace

std::optional<Backward> ProblemReport::strategy() const {
  const auto two = sumOf({winnerIn(kernel(KernelRole::DKV)), winnerIn(kernel(KernelRole::DQ))});
  const auto fused = sumOf({winnerIn(kernel(KernelRole::Fused))});
  if (!two && !fused) return std::nullopt;
  return !two || (fused && *fused < *two) ? Backward::Fused : Backward::TwoKernel;
}

std::optional<double> ProblemReport::defaultMs(Direction direction, const Target &target) const {
  if (direction == Direction::Forward) return sumOf({defaultIn(kernel(KernelRole::Forward))});
  if (defaultBackward(problem, target) == Backward::Fused && kernel(KernelRole::Fused))
    return sumOf({defaultIn(kernel(KernelRole::Fused))});
  return sumOf({defaultIn(kernel(KernelRole::DKV)), defaultIn(kernel(KernelRole::DQ))});
}

std::optional<double> ProblemReport::tunedMs(Direction direction) const {
  if (direction == Direction::Forward) return sumOf({winnerIn(kernel(KernelRole::Forward))});
  const std::optional<Backward> chosen = strategy();
  if (!chosen) return std::nullopt;
  return *chosen == Backward::Fused ? sumOf({winnerIn(kernel(KernelRole::Fused))})
                                    : sumOf({winnerIn(kernel(KernelRole::DKV)), winnerIn(kernel(KernelRole::DQ))});
}

bool ProblemReport::hasWinners() const {
  return failure.empty() &&
         std::ranges::all_of(kernels, [](const KernelReport &kernel) { return kernel.winner() != nullptr; });
}

bool TuneReport::hasWinners() const { return std::ranges::all_of(problems, &ProblemReport::hasWinners); }

double kernelFlops(const ProblemReport &report, KernelRole role) {
  const Problem &p = report.problem;
  const double qk = 2 * report.visiblePairs * static_cast<double>(p.dimQK);
  const double v = 2 * report.visiblePairs * static_cast<double>(p.dimV);
  switch (role) {
  case KernelRole::DQ: // S, dP, dQ
    return 2 * qk + v;
  case KernelRole::DKV: // S, dP, dV, dK
    return 2 * qk + 2 * v;
  case KernelRole::Fused: // the same and dQ
    return 3 * qk + 2 * v;
  default:
    return qk + v;
  }
}

std::optional<double> matrixPeak(const Target &target, DType dtype, double clockMhz) {
  if (target.isCpu() || dtype == DType::F32 || clockMhz <= 0) return std::nullopt;
  // Dense bf16 and fp16 FLOPs a clock and SM with fp32 sums (NVIDIA's architecture white papers).
  const int cc = target.computeCapability;
  const double each = cc == 80 ? 2048 : cc == 90 ? 4096 : cc == 100 || cc == 103 ? 8192 : cc < 100 ? 1024 : 1024;
  return each * target.smCount * clockMhz * 1e6;
}

std::string problemText(const Problem &p) {
  std::string text = fmt::format("{} d{}{} {}", TuningSizes(p).text(), p.dimQK,
                                 p.dimV == p.dimQK ? "" : fmt::format(":{}", p.dimV), toString(p.dtype));
  if (p.causal) text += " causal";
  if (p.window != Window()) text += fmt::format(" window {},{}", p.window.left, p.window.right);
  if (p.softcap > 0) text += fmt::format(" softcap {}", p.softcap);
  if (!p.mask.empty()) text += fmt::format(" mask {}", p.mask);
  if (!p.score.empty()) text += fmt::format(" score {}", p.score);
  if (p.layout == Layout::BHSD) text += " bhsd";
  return text;
}

std::map<TuningOutcome, size_t> outcomesOf(const KernelReport &kernel) {
  std::map<TuningOutcome, size_t> counts;
  for (const TunedCandidate &row : kernel.rows)
    ++counts[row.outcome];
  return counts;
}

std::string differenceText(const Schedule &schedule, const Schedule &from) {
  if (schedule == from) return "the default";
  const nlohmann::json own = schedule, other = from;
  // In the canonical text's order, which goes from the coarse to the fine.
  std::string text, canonical = schedule.canonicalText();
  for (size_t begin = 0; begin < canonical.size();) {
    const size_t end = std::min(canonical.find(',', begin), canonical.size());
    const std::string setting = canonical.substr(begin, end - begin), key = setting.substr(0, setting.find('='));
    if (own.value(key, nlohmann::json()) != other.value(key, nlohmann::json()))
      text += (text.empty() ? "" : " ") + setting;
    begin = end + 1;
  }
  return text;
}

namespace {

nlohmann::json rowJson(const TunedCandidate *row) {
  if (!row) return nullptr;
  return {{"schedule", row->schedule},
          {"ms", row->ms},
          {"fastest_ms", row->fastestMs},
          {"slowest_ms", row->slowestMs},
          {"confirmed", row->confirmed},
          {"repeats", row->repeats},
          {"clock_mhz", row->clockMhz > 0 ? nlohmann::json(row->clockMhz) : nlohmann::json()}};
}

nlohmann::json kernelJson(const TuneReport &report, const ProblemReport &problem, const KernelReport &kernel) {
  nlohmann::json pruned = nlohmann::json::object(), outcomes = nlohmann::json::object(),
                 failures = nlohmann::json::array(), candidates = nlohmann::json::array();
  for (PruneReason reason :
       {PruneReason::Form, PruneReason::SharedMemory, PruneReason::Registers, PruneReason::CostModel}) {
    auto found = kernel.list.pruned.find(reason);
    pruned[toString(reason)] = found == kernel.list.pruned.end() ? 0 : found->second;
  }
  for (const auto &[outcome, count] : outcomesOf(kernel))
    outcomes[toString(outcome)] = count;
  for (const TunedCandidate &row : kernel.rows)
    if (row.outcome != TuningOutcome::Ok)
      failures.push_back({{"schedule", row.schedule}, {"outcome", toString(row.outcome)}, {"detail", row.detail}});
  nlohmann::json json = {
      {"role", toString(kernel.role)},
      {"considered", kernel.list.considered},
      {"pruned", pruned},
      {"candidates", kernel.list.kept.size()},
      {"reused", kernel.reused},
      {"measured", kernel.measured},
      {"left", kernel.left()},
      {"outcomes", outcomes},
      {"failures", failures},
      {"default", rowJson(kernel.defaultRow())},
      {"winner", rowJson(kernel.winner())},
      {"gain", kernel.winner() && kernel.defaultRow() ? nlohmann::json(kernel.gain()) : nlohmann::json()}};
  if (const TunedCandidate *winner = kernel.winner()) {
    const double rate = kernelFlops(problem, kernel.role) / (winner->ms * 1e-3);
    json["tflops"] = rate * 1e-12;
    const auto peak = matrixPeak(report.target, kernel.problem.dtype, winner->clockMhz);
    json["of_peak"] = peak ? nlohmann::json(rate / *peak) : nlohmann::json();
  }
  if (report.dryRun)
    for (const Candidate &candidate : kernel.list.kept)
      candidates.push_back({{"schedule", candidate.schedule}, {"estimate", candidate.estimate}});
  if (report.dryRun) json["schedules"] = candidates;
  return json;
}

} // namespace

nlohmann::json toJson(const TuneReport &report) {
  nlohmann::json problems = nlohmann::json::array();
  auto number = [](std::optional<double> value) { return value ? nlohmann::json(*value) : nlohmann::json(); };
  for (const ProblemReport &problem : report.problems) {
    nlohmann::json kernels = nlohmann::json::array();
    for (const KernelReport &kernel : problem.kernels)
      kernels.push_back(kernelJson(report, problem, kernel));
    nlohmann::json json = {{"problem", problem.problem},
                           {"name", problemText(problem.problem)},
                           {"kernels", kernels},
                           {"seconds", problem.seconds},
                           {"forward_default_ms", number(problem.defaultMs(Direction::Forward, report.target))},
                           {"forward_ms", number(problem.tunedMs(Direction::Forward))},
                           {"winners", problem.hasWinners()}};
    if (!problem.failure.empty()) json["failure"] = problem.failure;
    if (problem.problem.direction == Direction::Backward) {
      json["backward_default_ms"] = number(problem.defaultMs(Direction::Backward, report.target));
      json["backward_ms"] = number(problem.tunedMs(Direction::Backward));
      const auto strategy = problem.strategy();
      json["backward"] = strategy ? nlohmann::json(toString(*strategy)) : nlohmann::json();
    }
    problems.push_back(std::move(json));
  }
  const TuningEnvironment &e = report.environment;
  return {{"target", e.target},
          {"device", e.device},
          {"driver", e.driver},
          {"compiler", e.compiler},
          {"policy", e.policy},
          {"started", report.started},
          {"store", report.store},
          {"problems", problems},
          {"interrupted", report.interrupted},
          {"unsaved", report.unsaved},
          {"ok", report.dryRun || report.hasWinners()}};
}

} // namespace tilewright::tune
