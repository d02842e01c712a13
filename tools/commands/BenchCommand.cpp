// `tilewright bench`: measurements of Tilewright itself.
#include "../bench/TemporaryFolder.h"
#include "BenchAttention.h"
#include "BenchCpu.h"
#include "BenchLaunch.h"
#include "BenchTraining.h"
#include "Commands.h"
#include "Console.h"
#include "ProblemOptions.h"
#include "tilewright/Attention.h"
#include "tilewright/Compiler.h"
#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>

namespace tilewright::tool {
namespace {

using Clock = std::chrono::steady_clock;

double msSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct StartupFigures {
  std::string symbol;
  double coldMs = 0, warmMs = 0, memoryUs = 0; ///< Problem -> loaded kernel: compiled, from disk, from memory.
};

Expected<std::shared_ptr<Context>> freshContext(Compiler &compiler, const std::string &cache) {
  ContextOptions options;
  options.generator = &compiler;
  options.hostCompiler = Compiler::hostCompiler();
  options.cacheDir = cache;
  return Context::create(options);
}

/// Without a device a CUDA kernel is compiled and read back but not loaded.
Expected<double> timePrepare(Context &context, const KernelPlan &plan, bool load) {
  auto start = Clock::now();
  if (load) {
    Expected<Kernel> kernel = context.prepare(plan);
    if (!kernel) return propagate(kernel);
  } else {
    Expected<CompiledKernel> kernel = context.compile(plan);
    if (!kernel) return propagate(kernel);
  }
  return msSince(start);
}

Expected<std::vector<StartupFigures>> measureStartup(const Target &target, bool load) {
  Compiler compiler;
  std::vector<StartupFigures> figures;
  // A cache of its own: start-up is measured cold without touching the user's.
  Expected<bench::TemporaryFolder> cache = bench::TemporaryFolder::make("bench");
  if (!cache) return propagate(cache);
  for (int64_t dim : {64, 128})
    for (bool causal : {false, true}) {
      Problem problem;
      problem.batch = 2;
      problem.headsQ = problem.headsKV = 8;
      problem.seqQ = problem.seqKV = 2048;
      problem.dimQK = problem.dimV = dim;
      problem.causal = causal;
      problem.direction = Direction::Backward;
      Expected<std::vector<PlanChoice>> plans = choosePlans(problem, target);
      if (!plans) return propagate(plans);
      for (const auto &[plan, origin, from] : *plans) {
        StartupFigures f{plan.symbol()};
        auto isKnown = [&](const StartupFigures &known) { return known.symbol == f.symbol; };
        if (std::any_of(figures.begin(), figures.end(), isKnown)) continue; // delta and convert serve every mask
        Progress progress(f.symbol);
        double *slots[] = {&f.coldMs, &f.warmMs};
        std::shared_ptr<Context> last;
        for (double *slot : slots) { // a new Context each: nothing is in memory
          Expected<std::shared_ptr<Context>> context = freshContext(compiler, cache->path().string());
          if (!context) return propagate(context);
          if (load && !target.isCpu())
            if (auto opened = (*context)->device(0); !opened)
              return propagate(opened); // the driver's own start is not ours
          Expected<double> ms = timePrepare(**context, plan, load);
          if (!ms) return propagate(ms);
          *slot = *ms;
          last = *context;
        }
        if (load) {
          Expected<double> ms = timePrepare(*last, plan, true);
          if (!ms) return propagate(ms);
          f.memoryUs = *ms * 1000;
        }
        figures.push_back(f);
      }
    }
  return figures;
}

Expected<LaunchFigures> timeLaunch(const Target &target) {
  Compiler compiler;
  Expected<bench::TemporaryFolder> cache = bench::TemporaryFolder::make("bench");
  if (!cache) return propagate(cache);
  Expected<std::shared_ptr<Context>> context = freshContext(compiler, cache->path().string());
  if (!context) return propagate(context);
  return measureLaunch(**context, target);
}

struct StartupOptions {
  std::string target = "auto";
  bool json = false;
};

int runStartup(const StartupOptions &options) {
  Expected<Target> target = chooseTarget(options.target);
  if (!target) return reportError(target.error());
  bool device = target->isCpu() || options.target == "auto" || cuda::Driver::open();
  Expected<std::vector<StartupFigures>> figures = measureStartup(*target, device);
  if (!figures) return reportError(figures.error());
  std::optional<LaunchFigures> launch;
  if (device && !target->isCpu()) {
    Expected<LaunchFigures> measured = timeLaunch(*target);
    if (!measured) return reportError(measured.error());
    launch = *measured;
  }
  if (options.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const StartupFigures &f : *figures)
      rows.push_back({{"symbol", f.symbol}, {"cold_ms", f.coldMs}, {"warm_ms", f.warmMs}, {"memory_us", f.memoryUs}});
    nlohmann::json json{{"target", target->name}, {"loaded", device}, {"kernels", rows}, {"launch", nullptr}};
    if (launch)
      json["launch"] = {{"driver_us", launch->driverUs},
                        {"launch_us", launch->launchUs},
                        {"above_us", launch->aboveUs},
                        {"no_current_context_us", launch->elsewhereUs}};
    fmt::print("{}\n", json.dump());
    return kSuccess;
  }
  fmt::print("{:<64} {:>9} {:>9} {:>10}\n",
             fmt::format("{}, problem to {} kernel", target->name, device ? "loaded" : "compiled"), "cold ms",
             "disk ms", "memory us");
  for (const StartupFigures &f : *figures)
    fmt::print("{:<64} {:>9.0f} {:>9.2f} {:>10.1f}\n", f.symbol, f.coldMs, f.warmMs, f.memoryUs);
  if (launch)
    fmt::print(
        "launch: cuLaunchKernel alone {:.2f} us, Kernel::launch {:.2f} us: {:.2f} us above it ({:.2f} us above where "
        "no context is current)\n",
        launch->driverUs, launch->launchUs, launch->aboveUs, launch->elsewhereUs - launch->driverUs);
  return kSuccess;
}

} // namespace

void addBenchCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("bench", "Measure Tilewright");
  command->require_subcommand(1);
  addBenchAttention(*command, exitCode);
  addBenchCpu(*command, exitCode);
  addBenchTraining(*command, exitCode);
  CLI::App *startup = command->add_subcommand(
      "startup", "Time from problem to kernel: compiled, from disk, from memory; and of a launch");
  auto options = std::make_shared<StartupOptions>();
  startup->add_option("--target", options->target, "As for run")->capture_default_str();
  startup->add_flag("--json", options->json, "One JSON object on stdout");
  startup->callback([options, &exitCode] { exitCode = runStartup(*options); });
  command->footer(
      "\nEXAMPLES\n  tilewright bench attention --quick\n  tilewright bench cpu\n  tilewright bench startup --target "
      "sm_90a\n  tilewright bench ddp --model tiny --ranks 2\n  tilewright bench zero --model small --ranks 2\n");
}

} // namespace tilewright::tool
