#include "MeasureSession.h"
#include "tilewright/Context.h"
#include "tilewright/plan/Sm90Layout.h"
#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright::tune {
namespace {

constexpr uint64_t kSeed = 1;
constexpr int kFewest = 5, kMost = 40, kFirstLook = 3;
constexpr int64_t kRowsOfTables = 64; ///< That are checked where the problem cannot be made small.

double median(std::vector<double> &times) {
  std::sort(times.begin(), times.end());
  const size_t half = times.size() / 2;
  return times.size() % 2 ? times[half] : (times[half - 1] + times[half]) / 2;
}

int repeatsFor(double budgetMs, double eachMs) {
  return std::clamp(static_cast<int>(budgetMs / std::max(eachMs, 1e-4)), kFewest, kMost);
}

} // namespace

Problem checkedProblem(const Problem &problem, const Target &target) {
  if (!problem.tables.empty()) return problem;
  // Odd, and more than one tile of the largest; a persistent Hopper block takes several tiles only where there are
  // more of them than SMs.
  constexpr int64_t kLength = 261;
  const bool persistent = familyOf(problem, target, KernelRole::Forward) == KernelFamily::Sm90;
  const int64_t mostHeads = persistent ? 72 : 4;
  Problem p = problem;
  const int64_t group = std::max<int64_t>(problem.groupSize(), 1);
  p.headsKV = std::clamp<int64_t>(mostHeads / group, 1, problem.headsKV);
  p.headsQ = p.headsKV * group;
  p.batch = std::clamp<int64_t>(mostHeads / p.headsQ, std::min<int64_t>(problem.batch, 1), problem.batch);
  p.seqQ = std::min(problem.seqQ, kLength);
  p.seqKV = std::min(problem.seqKV, problem.seqQ == problem.seqKV ? kLength : kLength + 128);
  return p;
}

Expected<std::unique_ptr<MeasureSession>> MeasureSession::make(Context &context, Options options) {
  std::unique_ptr<MeasureSession> session(new MeasureSession(context, std::move(options)));
  if (Status status = session->open(); !status) return propagate(status);
  return session;
}

Status MeasureSession::open() {
  if (!options.target.isCpu()) {
    auto opened = context.device(options.device);
    if (!opened) return propagate(opened);
    device = *opened;
    auto made = bench::LaunchTimer::create(context, options.target, options.device);
    if (!made) return propagate(made);
    timer.emplace(std::move(*made));
    if (options.coldCaches) {
      constexpr int64_t kUnknownL2 = 64 << 20;
      const int64_t bytes = 2 * (device->info().l2Bytes ? device->info().l2Bytes : kUnknownL2);
      auto memory = cuda::DeviceMemory::allocate(device, bytes);
      if (!memory) return propagate(memory);
      flush = std::move(*memory);
    }
  }
  auto large = AttentionMemory::make(options.problem, options.tables, device);
  if (!large) return propagate(large);
  full.emplace(std::move(*large));
  if (device) {
    // Pairs of bf16 values read as fp32 are normal values as well: the high half decides.
    uint64_t seed = kSeed;
    const DType dtype = options.problem.dtype == DType::F32 ? DType::BF16 : options.problem.dtype;
    for (cuda::DeviceMemory *input : full->deviceInputs())
      if (Status status = timer->fillNormal(*input, dtype, seed++); !status) return status;
  } else {
    auto inputs = randomTensors(options.problem, kSeed);
    if (!inputs) return propagate(inputs);
    if (Status status = full->fillInputs(*inputs); !status) return status;
  }

  smallProblem = checkedProblem(options.problem, options.target);
  auto checked = AttentionMemory::make(smallProblem, options.tables, device);
  if (!checked) return propagate(checked);
  small.emplace(std::move(*checked));
  auto inputs = randomTensors(smallProblem, kSeed);
  if (!inputs) return propagate(inputs);
  if (Status status = small->fillInputs(*inputs); !status) return status;
  AttentionInputs views{inputs->q.view(), inputs->k.view(), inputs->v.view(), inputs->dO.view(), {}};
  for (const Table &table : options.tables)
    views.tables.push_back(table.data());
  auto reference =
      AttentionVerifier::make(smallProblem, views, {.rows = smallProblem.tables.empty() ? 0 : kRowsOfTables});
  if (!reference) return propagate(reference);
  verifier.emplace(std::move(*reference));

  if (Status status = synchronize(); !status) return status; // uploads went through another stream
  if (options.problem.direction == Direction::Forward) return {};
  for (AttentionMemory *memory : {&*small, &*full})
    if (Status status = runForward(*memory); !status) return status;
  return {};
}

Status MeasureSession::runForward(AttentionMemory &memory) {
  for (KernelRole role : {KernelRole::Forward, KernelRole::Delta}) {
    Problem own = options.problem;
    if (role == KernelRole::Forward) own.direction = Direction::Forward;
    auto plan = KernelPlan::make(own, options.target, role);
    if (!plan) return propagate(plan);
    auto kernels = prepare(*plan);
    if (!kernels) return propagate(kernels);
    if (Status status = memory.reserveWorkspace(*kernels); !status) return status;
    if (Status status = runOnce(*kernels, memory); !status) return status;
  }
  return synchronize();
}

Expected<std::vector<Kernel>> MeasureSession::prepare(const KernelPlan &plan) {
  std::vector<Kernel> kernels;
  for (const KernelPlan &each : withFollower(plan)) {
    auto kernel = context.prepare(each, {.device = options.device});
    if (!kernel) return propagate(kernel);
    kernels.push_back(std::move(*kernel));
  }
  return kernels;
}

Status MeasureSession::synchronize() { return device ? device->synchronize() : Status(); }

Status MeasureSession::runOnce(const std::vector<Kernel> &kernels, AttentionMemory &memory) {
  for (const Kernel &kernel : kernels) {
    if (!device) {
      if (Status status = kernel.run(memory.args); !status) return status;
      continue;
    }
    if (kernel.plan().role == KernelRole::Fused)
      if (Status status = memory.clearSums(timer->stream()); !status) return status;
    if (Status status = kernel.launch(timer->stream(), memory.args); !status) return status;
  }
  return {};
}

Expected<std::string> MeasureSession::check(const std::vector<Kernel> &kernels) {
  const KernelRole role = kernels.front().plan().role;
  if (Status status = small->reserveWorkspace(kernels); !status) return propagate(status);
  if (Status status = small->poisonResults(role); !status) return propagate(status);
  if (Status status = synchronize(); !status) return propagate(status); // poison went through another stream
  if (Status status = runOnce(kernels, *small); !status) return propagate(status);
  if (Status status = synchronize(); !status) return propagate(status);
  auto results = small->results(role);
  if (!results) return propagate(results);
  auto verdict = verifier->verify(
      {results->o.view(), results->lse.view(), results->dQ.view(), results->dK.view(), results->dV.view()});
  if (!verdict) return propagate(verdict);
  return verdict->failure();
}

Status MeasureSession::timeOnHost(const std::vector<Kernel> &kernels, const MeasureRequest &request,
                                  std::vector<double> &times) {
  auto once = [&]() -> Expected<double> {
    const auto begin = std::chrono::steady_clock::now();
    if (Status status = runOnce(kernels, *full); !status) return propagate(status);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  };
  Expected<double> warm = once();
  if (!warm) return propagate(warm);
  // The first run pays for pages and caches: only twice the limit is hopeless already.
  if (request.stopAboveMs > 0 && *warm > 2 * request.stopAboveMs) {
    times = {*warm};
    return {};
  }
  int wanted = kFewest;
  for (int i = 0; i < wanted; ++i) {
    Expected<double> ms = once();
    if (!ms) return propagate(ms);
    times.push_back(*ms);
    const double fastest = *std::ranges::min_element(times);
    if (request.stopAboveMs > 0 && i + 1 == kFirstLook && fastest > request.stopAboveMs) return {};
    wanted = repeatsFor(request.budgetMs, fastest);
  }
  return {};
}

Status MeasureSession::time(const std::vector<Kernel> &kernels, const MeasureRequest &request,
                            Measurement &measurement) {
  if (Status status = full->reserveWorkspace(kernels); !status) return status;
  if (!device) {
    std::vector<double> times;
    if (Status status = timeOnHost(kernels, request, times); !status) return status;
    measurement.ms = median(times); // and sorts
    measurement.fastestMs = times.front();
    measurement.slowestMs = times.back();
    measurement.repeats = static_cast<int>(times.size());
    return {};
  }
  bench::SeriesOptions series;
  series.pauseSeconds = 0;
  series.warmups = 1;
  series.repeats = kFirstLook;
  if (options.coldCaches) series.before = [&] { return flush.fill(0, timer->stream()); };
  auto once = [&] { return runOnce(kernels, *full); };
  Expected<bench::TimedSeries> timed = timer->measure(once, series);
  if (!timed) return propagate(timed);
  const bool hopeless = request.stopAboveMs > 0 && timed->figures.fastestMs > request.stopAboveMs;
  if (!hopeless) {
    series.repeats = repeatsFor(request.budgetMs, timed->figures.fastestMs);
    timed = timer->measure(once, series);
    if (!timed) return propagate(timed);
  }
  measurement.ms = timed->figures.ms;
  measurement.fastestMs = timed->figures.fastestMs;
  measurement.slowestMs = timed->figures.slowestMs;
  measurement.repeats = series.repeats;
  measurement.clockMhz = timed->figures.clockAfterMhz.value_or(0);
  return {};
}

Measurement MeasureSession::measure(const MeasureRequest &request) {
  Measurement measurement;
  auto failed = [&](TuningOutcome outcome, std::string detail) {
    measurement = {};
    measurement.outcome = outcome;
    measurement.detail = std::move(detail);
    return measurement;
  };
  if (Status status = request.plan.validate(); !status) return failed(TuningOutcome::Invalid, status.error().message);
  auto kernels = prepare(request.plan);
  if (!kernels) return failed(TuningOutcome::CompileFailed, kernels.error().message);
  for (const Kernel &kernel : *kernels)
    if (const auto &problems = kernel.report().compile.problems; !problems.empty() && !request.spillsToo)
      return failed(TuningOutcome::Spills, fmt::format("{}", fmt::join(problems, "; ")));
  // What a launch breaks shows when it is waited for, and a CUDA context does not recover from it.
  auto crashed = [&](const Error &error) {
    failed(TuningOutcome::Crashed, error.message);
    measurement.deviceLost = device != nullptr;
    return measurement;
  };
  if (request.check) {
    Expected<std::string> wrong = check(*kernels);
    if (!wrong) return crashed(wrong.error());
    if (!wrong->empty()) return failed(TuningOutcome::WrongResult, std::move(*wrong));
  }
  if (Status status = time(*kernels, request, measurement); !status) return crashed(status.error());
  return measurement;
}

} // namespace tilewright::tune
