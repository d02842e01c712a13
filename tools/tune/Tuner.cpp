#include "Tuner.h"
#include "../bench/GpuMonitor.h"
#include "tilewright/problem/TileMap.h"
#include <algorithm>
#include <ctime>
#include <deque>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace tilewright::tune {

using bench::monotonicSeconds;
using Kind = WorkerRequest::Kind;

namespace {

/// Slower than the best by this factor in every one of the first launches: not worth more of them.
constexpr double kHopeless = 1.4;
/// Who takes part in the last round: the fastest, at most so many, if they are within this factor of the best.
constexpr size_t kFinalists = 4;
constexpr double kFinalistWithin = 1.06;
constexpr int kFinalRounds = 5, kFinalPasses = 3;
/// Timed launches of one series.
constexpr double kFirstBudgetMs = 25, kFinalBudgetMs = 30;
/// A problem's tensors and reference may take longer to make than a candidate to run.
constexpr double kOpenSeconds = 20;
constexpr int kOpenAttempts = 3;
/// Of the time for a problem, what is kept for the last round, and what a CPU, which cannot measure meanwhile, may
/// spend on compiling.
constexpr double kFinalShare = 0.25, kCpuCompileShare = 0.4;

std::vector<KernelRole> rolesToTune(const Problem &problem, const Target &target, const ScheduleOverrides &overrides) {
  std::vector<KernelRole> roles = {KernelRole::Forward};
  if (problem.direction == Direction::Forward) return roles;
  const auto strategy = overrides.backward();
  if (strategy != Backward::Fused) roles.insert(roles.end(), {KernelRole::DQ, KernelRole::DKV});
  if (strategy != Backward::TwoKernel && !target.isCpu() && problem.dtype != DType::F32)
    roles.push_back(KernelRole::Fused);
  return roles;
}

/// Tiles by size, counted once each.
class VisitCounter {
public:
  VisitCounter(const Problem &problem, const std::vector<expr::TableData> &tables) : problem(problem), tables(tables) {}

  double operator()(int tileQ, int tileKV) {
    auto [place, isNew] = known.try_emplace({tileQ, tileKV}, 0.0);
    if (isNew) {
      Expected<TileMap> map = TileMap::make(problem, tileQ, tileKV, tables);
      // A mask that cannot be classified here is guessed to leave everything.
      place->second = map ? static_cast<double>(map->counts.full + map->counts.partial)
                          : static_cast<double>(problem.batch * problem.headsQ) *
                                (static_cast<double>(problem.seqQ) / tileQ) *
                                (static_cast<double>(problem.seqKV) / tileKV);
    }
    return place->second;
  }

private:
  const Problem &problem;
  const std::vector<expr::TableData> &tables;
  std::map<std::pair<int, int>, double> known;
};

bool wasExternal(TuningOutcome outcome) {
  return outcome == TuningOutcome::Crashed || outcome == TuningOutcome::TimedOut;
}

double medianOf(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

} // namespace

Tuner::Tuner(TunerOptions given, Target target, TuningEnvironment environment, std::shared_ptr<TunedStore> store,
             std::filesystem::path folder, const std::atomic<bool> &interrupted, TuneProgress &progress)
    : options(std::move(given)), target(std::move(target)), environment(std::move(environment)), store(store),
      writer(store), pool(std::move(folder), options.compilers + 1), interrupted(interrupted), progress(progress) {}

size_t Tuner::finish() {
  constexpr double kPatience = 10;
  writer.finish(kPatience);
  return writer.unsaved();
}

ProblemReport Tuner::plan(const TuneProblem &stated) const {
  const Problem &problem = stated.problem;
  ProblemReport report;
  report.problem = problem;
  report.tableFiles = stated.tableFiles;
  std::vector<expr::TableData> tables;
  for (const Table &table : stated.tables)
    tables.push_back(table.data());
  VisitCounter visits(problem, tables);
  if (Expected<TileMap> map = TileMap::make(problem, 64, 64, tables)) report.visiblePairs = map->visiblePairs;
  for (KernelRole role : rolesToTune(problem, target, options.candidates.overrides)) {
    KernelReport kernel;
    kernel.role = role;
    kernel.problem = problem;
    if (role == KernelRole::Forward) kernel.problem.direction = Direction::Forward;
    auto list = candidatesOf(kernel.problem, target, role, options.candidates, std::ref(visits));
    // A strategy that has no kernel for these dims leaves the other.
    if (!list && role == KernelRole::Fused) continue;
    if (!list) {
      report.failure = list.error().message;
      report.kernels.clear();
      return report;
    }
    kernel.list = std::move(*list);
    kernel.byDefault = kernel.list.kept.front().schedule;
    if (store)
      for (TunedCandidate &row : store->rows(environment, kernel.problem, role)) {
        const bool wanted =
            std::ranges::any_of(kernel.list.kept, [&](const Candidate &c) { return c.schedule == row.schedule; });
        if (wanted && !(options.retryFailed && wasExternal(row.outcome))) kernel.rows.push_back(std::move(row));
      }
    kernel.reused = kernel.rows.size();
    report.kernels.push_back(std::move(kernel));
  }
  return report;
}

struct Tuner::Run {
  Tuner &tuner;
  ProblemReport &report;
  TuneState state;
  const double begin = monotonicSeconds();
  std::string name;                        ///< Of the problem, for workers.
  std::deque<size_t> toCompile, toMeasure; ///< Indices of items.
  std::vector<Item> items;
  int openAttempts = 0;

  Run(Tuner &tuner, ProblemReport &report, size_t index, size_t problems) : tuner(tuner), report(report) {
    state.problem = index;
    state.problems = problems;
    state.name = problemText(report.problem);
    name = nlohmann::json(report.problem).dump();
  }

  size_t measurer() const { return tuner.pool.size() - 1; }
  double openSeconds() const { return tuner.options.timeoutSeconds + kOpenSeconds; }
  double spent() const { return monotonicSeconds() - begin; }
  bool goesOn() const { return !tuner.interrupted && report.failure.empty(); }

  KernelReport &kernelOf(const Item &item) { return report.kernels[item.kernel]; }
  const Schedule &scheduleOf(const Item &item) { return kernelOf(item).list.kept[item.candidate].schedule; }
  bool isDefault(const Item &item) const { return item.candidate == 0; }

  /// What is missing, the defaults first and then by estimate.
  void collect() {
    for (size_t k = 0; k < report.kernels.size(); ++k)
      for (size_t c = 0; c < report.kernels[k].list.kept.size(); ++c) {
        ++state.total;
        if (report.kernels[k].row(report.kernels[k].list.kept[c].schedule))
          ++state.done;
        else
          items.push_back({k, c});
      }
    std::ranges::stable_sort(items, [&](const Item &a, const Item &b) {
      if (isDefault(a) != isDefault(b)) return isDefault(a);
      return !isDefault(a) && kernelOf(a).list.kept[a.candidate].estimate < kernelOf(b).list.kept[b.candidate].estimate;
    });
    for (size_t i = 0; i < items.size(); ++i)
      toCompile.push_back(i);
  }

  WorkerRequest request(Kind kind, const Item &item) {
    WorkerRequest r;
    r.kind = kind;
    r.problem = report.problem;
    r.measure.plan = {kernelOf(item).problem, scheduleOf(item), tuner.target, kernelOf(item).role};
    r.measure.spillsToo = isDefault(item);
    r.measure.budgetMs = kFirstBudgetMs;
    const TunedCandidate *best = kernelOf(item).winner();
    if (best && !isDefault(item)) r.measure.stopAboveMs = best->ms * kHopeless;
    r.tables = report.tableFiles;
    r.coldCaches = tuner.options.coldCaches;
    r.device = tuner.options.device;
    return r;
  }

  void record(const Item &item, const Measurement &m, bool confirmed) {
    KernelReport &kernel = kernelOf(item);
    TunedCandidate row;
    row.environment = tuner.environment;
    row.problem = kernel.problem;
    row.role = kernel.role;
    row.schedule = scheduleOf(item);
    row.outcome = m.outcome;
    row.detail = m.detail;
    row.ms = m.ms;
    row.fastestMs = m.fastestMs;
    row.slowestMs = m.slowestMs;
    row.clockMhz = m.clockMhz;
    row.repeats = m.repeats;
    row.confirmed = confirmed;
    row.recorded = std::time(nullptr);
    const TunedCandidate *before = kernel.winner();
    const double bestBefore = before ? before->ms : 0;
    if (TunedCandidate *known = kernel.row(row.schedule))
      *known = row;
    else
      kernel.rows.push_back(row);
    tuner.writer.add(row);
    describe(kernel, row, bestBefore);
  }

  void describe(const KernelReport &kernel, const TunedCandidate &row, double bestBefore) {
    if (row.outcome != TuningOutcome::Ok && row.outcome != TuningOutcome::Spills)
      tuner.progress.note(fmt::format("{} {}: {} ({})", toString(row.role), row.schedule.canonicalText(),
                                      toString(row.outcome), row.detail));
    const TunedCandidate *best = kernel.winner();
    if (!row.confirmed && best && best->schedule == row.schedule && bestBefore > 0)
      tuner.progress.note(fmt::format("{}: {:.4f} ms, {:.3f}x the default, with {}", toString(row.role), row.ms,
                                      kernel.gain(), differenceText(row.schedule, kernel.byDefault)));
    state.best.clear();
    for (const KernelReport &each : report.kernels)
      if (each.winner() && each.defaultRow())
        state.best += fmt::format("{}{} {:.2f}x", state.best.empty() ? "" : ", ", toString(each.role), each.gain());
  }

  void show() {
    const double finals = tuner.options.secondsPerProblem * kFinalShare / 2;
    const size_t now = state.total - items.size(), doneNow = state.done - now;
    if (doneNow > 3 && state.stage != "confirming") {
      const double each = spent() / static_cast<double>(doneNow);
      const double here = std::min(each * static_cast<double>(state.total - state.done) + finals,
                                   std::max(0.0, tuner.options.secondsPerProblem - spent()));
      const size_t others = state.problems - state.problem - 1;
      const double average = state.problem ? tuner.secondsSpent / static_cast<double>(state.problem) : spent() + here;
      state.secondsLeft = here + static_cast<double>(others) * average;
    }
    tuner.progress.show(state);
  }

  /// Another process may have measured it meanwhile.
  bool takeFromStore(const Item &item) {
    if (tuner.options.retryFailed) return false;
    KernelReport &kernel = kernelOf(item);
    auto row = tuner.store->find(tuner.environment, kernel.problem, kernel.role, scheduleOf(item));
    if (!row) return false;
    kernel.rows.push_back(std::move(*row));
    ++kernel.reused;
    ++state.done;
    return true;
  }

  /// Takes the next item of a queue that still has to be measured.
  std::optional<size_t> next(std::deque<size_t> &queue) {
    while (!queue.empty()) {
      const size_t index = queue.front();
      queue.pop_front();
      if (!takeFromStore(items[index])) return index;
    }
    return std::nullopt;
  }

  Status dispatch(double until) {
    const double now = monotonicSeconds();
    const bool inTime = now < until;
    const double compileUntil =
        tuner.target.isCpu() ? begin + tuner.options.secondsPerProblem * kCpuCompileShare : until;
    for (size_t slot = 0; slot < measurer() && now < compileUntil; ++slot) {
      if (!tuner.pool.isIdle(slot)) continue;
      if (const auto index = next(toCompile))
        if (Status status =
                tuner.pool.send(slot, request(Kind::Compile, items[*index]), *index, tuner.options.timeoutSeconds);
            !status)
          return status;
    }
    // A CPU that compiles is no place to measure on.
    const bool quiet =
        !tuner.target.isCpu() || (!tuner.pool.anyBusy(0, measurer()) && (toCompile.empty() || now >= compileUntil));
    if (!tuner.pool.isIdle(measurer()) || !quiet || !inTime || toMeasure.empty()) return {};
    return measureNext();
  }

  Status open(size_t index) {
    return tuner.pool.send(measurer(), request(Kind::Open, items[index]), index, openSeconds(), name);
  }

  Status measureNext() {
    if (tuner.pool.opened(measurer()) != name) return open(toMeasure.front());
    const auto index = next(toMeasure);
    if (!index) return {}; // others had measured all of them
    return tuner.pool.send(measurer(), request(Kind::Measure, items[*index]), *index, tuner.options.timeoutSeconds);
  }

  /// The problem itself cannot be measured, or its worker died several times before any candidate was its guest.
  void afterOpen(const Expected<Measurement> &reply) {
    if (!reply)
      report.failure = reply.error().message;
    else if (reply->outcome == TuningOutcome::Ok)
      openAttempts = 0;
    else if (++openAttempts == kOpenAttempts)
      report.failure = "the process that makes its tensors " + reply->detail;
  }

  void take(const WorkerAnswer &answer) {
    const Item &item = items[answer.tag];
    if (answer.kind == Kind::Open) return afterOpen(answer.reply);
    if (!answer.reply) { // said of the problem, not of the candidate
      report.failure = answer.reply.error().message;
      return;
    }
    if (answer.kind == Kind::Compile && answer.reply->outcome == TuningOutcome::Ok) {
      toMeasure.push_back(answer.tag);
      return;
    }
    ++kernelOf(item).measured;
    ++state.done;
    record(item, *answer.reply, false);
  }

  Status measureAll() {
    const double until = begin + tuner.options.secondsPerProblem * (1 - kFinalShare);
    for (;;) {
      state.stage = tuner.target.isCpu() && !toCompile.empty() ? "compiling" : "measuring";
      if (!goesOn()) break;
      if (Status status = dispatch(until); !status) return status;
      if (!tuner.pool.anyBusy(0, tuner.pool.size())) break; // nothing is left, or no time to begin it
      for (const WorkerAnswer &answer : tuner.pool.wait(0.5))
        take(answer);
      show();
    }
    return {};
  }

  /// Answers of one request to the measuring slot; nullopt when interrupted.
  Expected<std::optional<Measurement>> ask(const WorkerRequest &r, size_t tag, double timeout,
                                           const std::string &opens = {}) {
    if (Status status = tuner.pool.send(measurer(), r, tag, timeout, opens); !status) return propagate(status);
    while (goesOn()) {
      for (WorkerAnswer &answer : tuner.pool.wait(0.5)) {
        if (answer.slot != measurer()) continue; // a compiler's late answer
        if (!answer.reply) report.failure = answer.reply.error().message;
        if (answer.reply) return std::optional(*answer.reply);
      }
      show();
    }
    return std::optional<Measurement>();
  }

  /// The default and the fastest; nobody where all of them were confirmed before.
  std::vector<Item> finalistsOf(size_t k) {
    KernelReport &kernel = report.kernels[k];
    std::vector<std::pair<double, Item>> timed;
    for (size_t c = 0; c < kernel.list.kept.size(); ++c)
      if (const TunedCandidate *row = kernel.row(kernel.list.kept[c].schedule);
          row && row->outcome == TuningOutcome::Ok)
        timed.push_back({row->ms, {k, c}});
    if (timed.empty()) return {};
    std::ranges::stable_sort(timed, {}, &std::pair<double, Item>::first);
    std::vector<Item> finalists;
    for (const auto &[ms, item] : timed)
      if (isDefault(item) || (finalists.size() < kFinalists && ms <= timed.front().first * kFinalistWithin))
        finalists.push_back(item);
    const bool allConfirmed =
        std::ranges::all_of(finalists, [&](const Item &item) { return kernel.row(scheduleOf(item))->confirmed; });
    return allConfirmed ? std::vector<Item>() : finalists;
  }

  /// Times the finalists in turns, so that a machine that slows down slows all of them.
  Status confirm(size_t k) {
    std::vector<Item> finalists = finalistsOf(k);
    std::vector<std::vector<Measurement>> series(finalists.size());
    for (int round = 0; round < kFinalRounds; ++round)
      for (size_t f = 0; f < finalists.size(); ++f) {
        if (!goesOn()) return {};
        if (!series[f].empty() && series[f].back().outcome != TuningOutcome::Ok) continue;
        WorkerRequest r = request(Kind::Measure, finalists[f]);
        // A new worker makes the problem anew; one that dies on it is not the candidate's fault.
        while (tuner.pool.opened(measurer()) != name) {
          WorkerRequest again = r;
          again.kind = Kind::Open;
          auto opened = ask(again, 0, openSeconds(), name);
          if (!opened) return propagate(opened);
          if (!*opened) return {};
          afterOpen(**opened);
          if (!goesOn()) return {};
        }
        r.measure.check = false;
        r.measure.stopAboveMs = 0;
        r.measure.budgetMs = kFinalBudgetMs;
        auto m = ask(r, 0, tuner.options.timeoutSeconds);
        if (!m) return propagate(m);
        if (!*m) return {};
        series[f].push_back(**m);
      }
    for (size_t f = 0; f < finalists.size(); ++f)
      record(finalists[f], summaryOf(series[f]), true);
    return {};
  }

  static Measurement summaryOf(const std::vector<Measurement> &rounds) {
    if (rounds.back().outcome != TuningOutcome::Ok) return rounds.back();
    Measurement summary = rounds.front();
    std::vector<double> medians, clocks;
    summary.repeats = 0;
    for (const Measurement &m : rounds) {
      medians.push_back(m.ms);
      clocks.push_back(m.clockMhz);
      summary.fastestMs = std::min(summary.fastestMs, m.fastestMs);
      summary.slowestMs = std::max(summary.slowestMs, m.slowestMs);
      summary.repeats += m.repeats;
    }
    summary.ms = medianOf(medians);
    summary.clockMhz = medianOf(clocks);
    return summary;
  }

  Status go() {
    collect();
    if (!items.empty())
      if (Status status = measureAll(); !status) return status;
    state.stage = "confirming";
    for (size_t k = 0; k < report.kernels.size(); ++k)
      // Where the last round shows that the finalists owed their times to a lucky moment, it is the turn of others.
      for (int pass = 0; pass < kFinalPasses && goesOn() && (pass == 0 || spent() < tuner.options.secondsPerProblem);
           ++pass) {
        show();
        if (Status status = confirm(k); !status) return status;
      }
    return {};
  }
};

Status Tuner::tune(ProblemReport &report, size_t index, size_t problems) {
  Run run(*this, report, index, problems);
  Status status = report.failure.empty() ? run.go() : Status();
  report.seconds = run.spent();
  secondsSpent += report.seconds;
  // A worker in the middle of something would answer into the next problem.
  if (pool.anyBusy(0, pool.size()) || interrupted) pool.stop();
  return status;
}

} // namespace tilewright::tune
