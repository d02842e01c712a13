// `tilewright tune`: measures which schedules are fastest here, for `run` and every other user of the cache folder.
#include "../bench/TemporaryFolder.h"
#include "../tune/WorkerCommand.h"
#include "Commands.h"
#include "Console.h"
#include "InterruptGuard.h"
#include "OptionChecks.h"
#include "OutputFile.h"
#include "TuneProblems.h"
#include "tilewright/Compiler.h"
#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <thread>
#include <unistd.h>

namespace tilewright::tool {
namespace {

struct Options {
  ProblemOptions problem;
  std::string problems, ranges, report;
  tune::TunerOptions tuner;
  int compilers = 0, most = 48;
  bool warm = false, dryRun = false, json = false, quiet = false;
};

/// Processes that compile at a time: a GPU is measured on meanwhile, which takes a core of its own.
size_t compilersFor(const Options &options, const Target &target) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  constexpr int kMost = 32;
  if (options.compilers > 0) return static_cast<size_t>(options.compilers);
  return static_cast<size_t>(std::clamp(target.isCpu() ? cores : cores - 1, 1, kMost));
}

Expected<std::vector<tune::TuneProblem>> problemsOf(const Options &options) {
  if (options.problems.empty()) return statedProblem(options.problem);
  for (const CLI::Option *option : options.problem.given)
    if (option->count())
      return fail(Stage::Input, fmt::format("{} and --problems: the problems come from the file", option->get_name()),
                  "leave one of them out");
  return problemsOfFile(options.problems, options.problem.tables);
}

/// Everything that measuring needs to exist, in the order that errors are of use.
Expected<tune::TuneReport> tuneAll(const Options &options) {
  tune::TuneReport report;
  report.dryRun = options.dryRun;
  report.started = localTime();
  Expected<Target> target = chooseTarget(options.problem.target);
  if (!target) return propagate(target);
  tune::TunerOptions tuner = options.tuner;
  Expected<ScheduleOverrides> overrides = ScheduleOverrides::parse(options.problem.schedule);
  if (!overrides) return propagate(overrides);
  tuner.candidates.overrides = std::move(*overrides);
  Expected<tune::RangeOverrides> ranges = tune::RangeOverrides::parse(options.ranges);
  if (!ranges) return propagate(ranges);
  tuner.candidates.ranges = std::move(*ranges);
  tuner.candidates.most = static_cast<size_t>(options.most);
  tuner.coldCaches = !options.warm;
  Expected<std::vector<tune::TuneProblem>> problems = problemsOf(options);
  if (!problems) return propagate(problems);
  if (Status status = checkWritable("--report", options.report); !status) return propagate(status);

  Compiler compiler;
  ContextOptions contextOptions;
  contextOptions.generator = &compiler;
  contextOptions.hostCompiler = Compiler::hostCompiler();
  contextOptions.log = logToStderr(false);
  Expected<std::shared_ptr<Context>> context = Context::create(contextOptions);
  if (!context) return propagate(context);
  const std::string &cache = (*context)->diskCache().directory();
  if (cache.empty())
    return fail(Stage::Cache, "there is no cache folder to keep results in: neither HOME nor XDG_CACHE_HOME is set",
                "let TILEWRIGHT_CACHE_DIR name a folder");
  if (!target->isCpu()) {
    auto device = (*context)->device(tuner.device);
    if (!device && !options.dryRun) {
      device.error().message = fmt::format("tuning {} needs a GPU: {}", target->name, device.error().message);
      device.error().hint = "--dry-run lists the candidates without one; --target cpu tunes this processor";
      return propagate(device);
    }
    if (device) target->smCount = (*device)->info().smCount;
  }
  report.target = *target;
  report.environment = tuningEnvironment(**context, *target, tuner.device);
  if (!target->isCpu() && options.warm) report.environment.policy = kGpuWarmPolicy;
  tuner.compilers = compilersFor(options, *target);

  auto log = std::make_shared<Log>(logToStderr(false));
  std::shared_ptr<TunedStore> store;
  if (options.dryRun) {
    store = TunedStore::openExisting(cache, log);
  } else {
    auto opened = TunedStore::openOrCreate(cache, log);
    if (!opened) return propagate(opened);
    store = *opened;
    report.store = store->path();
  }
  Expected<bench::TemporaryFolder> folder = bench::TemporaryFolder::make("tune");
  if (!folder) return propagate(folder);
  tune::TuneProgress progress(options.quiet || options.dryRun);
  InterruptGuard guard;
  tune::Tuner run(std::move(tuner), *target, report.environment, store, folder->path(), InterruptGuard::requested(),
                  progress);
  for (size_t i = 0; i < problems->size() && !InterruptGuard::requested(); ++i) {
    report.problems.push_back(run.plan((*problems)[i]));
    if (options.dryRun) continue;
    if (Status status = run.tune(report.problems.back(), i, problems->size()); !status) return propagate(status);
    // After each problem: a run that is cut off leaves what it found.
    if (!options.report.empty())
      if (Status status = writeText(options.report, tune::toHtml(report)); !status) return propagate(status);
  }
  report.interrupted = InterruptGuard::requested();
  if (!options.dryRun) report.unsaved = run.finish();
  if (!options.report.empty())
    if (Status status = writeText(options.report, tune::toHtml(report)); !status) return propagate(status);
  return report;
}

int runTune(const Options &options) {
  Expected<tune::TuneReport> report = tuneAll(options);
  if (!report) return reportError(report.error());
  if (options.json)
    fmt::print("{}\n", tune::toJson(*report).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    fmt::print("{}", tune::toText(*report));
  if (!options.report.empty() && !options.json) fmt::print("wrote {}\n", options.report);
  if (report->unsaved)
    return reportError(
        {Stage::Cache,
         fmt::format("{} measurements are lost: {} could not be written", report->unsaved, report->store),
         "make room on the disk and run the command again: it measures only what is missing",
         {}});
  return report->dryRun || report->hasWinners() ? kSuccess : kWrongResult;
}

int runWorker(const std::string &cache) {
  Expected<Environment> environment = Environment::ofProcess();
  if (!environment) return reportError(environment.error());
  environment->record.clear(); // candidates are nobody's problems
  static Compiler compiler;
  ContextOptions options;
  options.generator = &compiler;
  options.hostCompiler = Compiler::hostCompiler();
  options.cacheDir = cache;
  options.environment = *environment;
  Expected<std::shared_ptr<Context>> context = Context::create(options);
  if (!context) return reportError(context.error());
  tune::serveRequests(**context, STDIN_FILENO, STDOUT_FILENO);
  return kSuccess;
}

} // namespace

void addTuneCommand(CLI::App &app, int &exitCode) {
  auto options = std::make_shared<Options>();
  CLI::App *command = app.add_subcommand("tune", "Measure which schedules are fastest here, and use them from now on");
  options->problem.addTo(*command, false);
  CLI::App *what = command->add_option_group("What");
  what->add_option("--problems", options->problems,
                   "File with a problem a line, as JSON (what TILEWRIGHT_RECORD=FILE records) or as options")
      ->check(regularFile());
  what->add_option("--range", options->ranges,
                   "Values to try, FIELD=LOW:HIGH[:STEP] or FIELD=A|B|C with commas between fields; FIELD is one of "
                   "tile_q tile_kv stages warps column_warps blocks_per_sm split_kv, or one kernel's: dq.tile_q");
  what->add_option("--most", options->most, "Candidates of a kernel that are measured at most; the likeliest are kept")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  what->add_option("--slowest", options->tuner.candidates.slowest,
                   "Leave out what the cost model puts at more than this multiple of its best")
      ->check(numberFrom(1.0, 1e6))
      ->capture_default_str();
  what->add_flag("--dry-run", options->dryRun, "List the candidates, measure nothing; needs no GPU");

  CLI::App *how = command->add_option_group("Measuring");
  how->add_option("--seconds", options->tuner.secondsPerProblem,
                  "Time for a problem; what is not measured by then is left for another run")
      ->check(numberFrom(1.0, 1e6))
      ->capture_default_str();
  how->add_option("--timeout", options->tuner.timeoutSeconds,
                  "Seconds that one candidate may take to compile, or to be measured")
      ->check(numberFrom(0.1, 1e5))
      ->capture_default_str();
  how->add_option("--compilers", options->compilers, "Processes that compile; default: as many as there are cores")
      ->check(CLI::Range(1, 256));
  how->add_flag("--warm", options->warm, "GPUs: leave L2 as the launch before left it, instead of flushing it");
  how->add_flag("--retry-failed", options->tuner.retryFailed,
                "Measure candidates again that crashed or timed out before");
  how->add_option("--device", options->tuner.device, "GPU to use, from 0")->capture_default_str();

  CLI::App *output = command->add_option_group("Output");
  output->add_option("--report", options->report, "File for a page with heat maps, rankings and failures")
      ->check(notEmpty());
  output->add_flag("--json", options->json, "One JSON object on stdout");
  output->add_flag("--quiet", options->quiet, "No progress on stderr");
  command->footer("\nHOW IT WORKS\n"
                  "  Every combination of a kernel's fields that the target's limits allow and the cost model does not "
                  "rule out is\n"
                  "  compiled and measured in a child process, checked against double precision on a small problem "
                  "first. The default\n"
                  "  always competes; the fastest are timed again in turns with it, and differences of 1 % are ties, "
                  "which it wins.\n"
                  "  Results are kept in the cache folder as they come: Ctrl-C loses nothing, and the same command "
                  "goes on with what is\n"
                  "  missing. `run`, `compile`, `bench` and programs that ask Context::choose use them for this "
                  "problem and for near\n"
                  "  ones of its kind; TILEWRIGHT_TUNED=0 does without. `tilewright tuned` lists, exports, imports.\n"
                  "  Exit codes: 0 every kernel has a winner, 1 some have none, 2 an error.\n"
                  "\nEXAMPLES\n"
                  "  tilewright tune --heads 16:4 --seq 4096 --dim 128 --causal --backward --report tuning.html\n"
                  "  tilewright tune --target cpu --seq 512 --seconds 20\n"
                  "  tilewright tune --target sm_90a --dim 256 --backward --dry-run\n"
                  "  TILEWRIGHT_RECORD=problems.jsonl ./my-program && tilewright tune --problems problems.jsonl\n"
                  "  tilewright tune --seq 1000 --range 'tile_kv=16:256:16,dq.stages=1|2|3' --schedule warps=4\n");
  command->callback([options, &exitCode] { exitCode = runTune(*options); });

  auto cache = std::make_shared<std::string>();
  CLI::App *worker = app.add_subcommand(std::string(tune::kWorkerCommand), "Measures candidates for `tilewright tune`");
  worker->group(""); // not for people: left out of --help
  worker->add_option("cache", *cache)->required();
  worker->callback([cache, &exitCode] { exitCode = runWorker(*cache); });
}

} // namespace tilewright::tool
