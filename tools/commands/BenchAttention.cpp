#include "BenchAttention.h"

#include "../bench/CellRun.h"
#include "../bench/ErrorCheck.h"
#include "../bench/RunProgress.h"
#include "../bench/Stderr.h"
#include "AttentionRun.h"
#include "Commands.h"
#include "Console.h"
#include "InterruptGuard.h"
#include "OutputFile.h"
#include "tilewright/Compiler.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::tool {
namespace {

using namespace bench;

struct Options {
  GridOptions grid;
  SeriesOptions series;
  std::string schedule, peers = "auto", python = "python3", json, html;
  bool quick = false, errors = false;
};

constexpr const char *kQuickSeqs = "1024,8192";

/// After every cell: a run that is cut off leaves what it measured.
Status writeFiles(const Options &options, const BenchResult &result) {
  if (!options.json.empty())
    if (Status status = writeText(options.json, toJson(result).dump(2) + "\n"); !status) return status;
  if (!options.html.empty())
    if (Status status = writeText(options.html, toHtml(result)); !status) return status;
  return {};
}

/// Everything a run needs besides the cases.
struct Bench {
  const Options &options;
  ScheduleOverrides overrides;
  std::shared_ptr<Context> context;
  std::shared_ptr<const cuda::Device> device;
  Target target;
  LaunchTimer timer;
  std::optional<GpuMonitor> monitor;
  Peers peers;

  Expected<SeriesFigures> measureOwn(const BenchCase &benchCase, std::string &schedule);
  Status checkErrorsOf(CellResult &cell);
  CellResult measure(const BenchCase &benchCase);
};

Expected<SeriesFigures> Bench::measureOwn(const BenchCase &benchCase, std::string &schedule) {
  Expected<Attention> attention = Attention::prepare(*context, benchCase.problem, target, overrides);
  if (!attention) return propagate(attention);
  Expected<CellRun> run = CellRun::make(device, timer, std::move(*attention));
  if (!run) return propagate(run);
  schedule = run->schedule();
  Expected<TimedSeries> series = timer.measure([&] { return run->launch(timer.stream()); }, options.series);
  if (!series) return propagate(series);
  if (monitor) {
    const GpuReadings readings = monitor->between(series->begin, series->end);
    series->figures.clockMhz = readings.clockMhz;
    series->figures.powerW = readings.powerW;
  }
  return series->figures;
}

Status Bench::checkErrorsOf(CellResult &cell) {
  return checkErrors(cell, peers, [&](const Problem &problem, RandomTensors &tensors) -> Expected<Tensor> {
    ProblemInputs inputs;
    inputs.problem = problem;
    inputs.tensors = std::move(tensors);
    Expected<AttentionRun> run = runAttention(*context, inputs, target, overrides);
    tensors = std::move(inputs.tensors);
    if (!run) return propagate(run);
    return std::move(run->o);
  });
}

CellResult Bench::measure(const BenchCase &benchCase) {
  CellResult cell;
  cell.benchCase = benchCase;
  cell.role = benchCase.problem.direction == Direction::Forward ? "forward" : "backward";
  cell.own.name = "tilewright";
  Expected<SeriesFigures> own = measureOwn(benchCase, cell.schedule);
  if (own)
    cell.own.series = *own;
  else
    cell.own.why = own.error().message;
  cell.peers = peers.measure(benchCase, options.series, monitor ? &*monitor : nullptr);
  if (options.errors && own && !InterruptGuard::requested())
    if (Status status = checkErrorsOf(cell); !status) cell.own.why = "errors: " + status.error().message;
  return cell;
}

std::string findingOf(const CellResult &cell) {
  if (!cell.own.series) return "failed: " + cell.own.why;
  std::string text = fmt::format("{:.4f} ms, {:.1f} {}", cell.own.series->ms, cell.rate(cell.own),
                                 cell.benchCase.rate == Rate::Flops ? "TFLOP/s" : "GB/s");
  if (std::optional<double> ratio = cell.ratio())
    text += fmt::format(", {:.3f}x {}", *ratio, displayName(cell.bestPeer()->name));
  return text;
}

Expected<BenchResult> runAll(Bench &bench, const std::vector<BenchCase> &cases) {
  BenchResult result;
  result.device = bench.device->info().name;
  result.driver = fmt::format("driver for CUDA {}", cuda::cudaVersionText(bench.device->driver().version()));
  result.target = bench.target.name;
  result.started = localTime();
  result.repeats = bench.options.series.repeats;
  result.warmups = bench.options.series.warmups;
  result.pauseSeconds = bench.options.series.pauseSeconds;
  result.peers = bench.peers.names();
  result.peersFrom = bench.peers.origin();
  result.planned = cases.size();
  InterruptGuard guard;
  RunProgress progress(cases.size());
  for (size_t i = 0; i < cases.size() && !InterruptGuard::requested(); ++i) {
    progress.begin(i, cases[i].name);
    CellResult cell = bench.measure(cases[i]);
    progress.end(findingOf(cell));
    result.cells.push_back(std::move(cell));
    result.interrupted = InterruptGuard::requested();
    if (Status status = writeFiles(bench.options, result); !status) return propagate(status);
  }
  return result;
}

Expected<std::string> pciAddressOf(const cuda::Device &device) {
  char address[64] = "";
  if (!device.api().deviceGetPCIBusId) return fail(Stage::Load, "the driver does not tell the device's PCI address");
  int code = device.api().deviceGetPCIBusId(address, sizeof(address), device.handle());
  if (Status status = device.driver().check(code, Stage::Load, "read the device's PCI address"); !status)
    return propagate(status);
  return std::string(address);
}

int run(const Options &given) {
  Options options = given;
  Expected<std::vector<BenchCase>> cases = benchCases(options.grid);
  if (!cases) return reportError(cases.error());
  if (options.errors && options.grid.backward)
    return reportError(
        {Stage::Input, "--errors: expected without --backward: it checks the results of the forward", {}, {}});
  Expected<ScheduleOverrides> overrides = ScheduleOverrides::parse(options.schedule);
  if (!overrides) return reportError(overrides.error());
  if (auto columns = Peers::parseChoice(options.peers); !columns) return reportError(columns.error());
  for (auto [option, path] : {std::pair("--json", &options.json), std::pair("--html", &options.html)})
    if (Status status = checkWritable(option, *path); !status) return reportError(status.error());

  Compiler compiler;
  ContextOptions contextOptions;
  contextOptions.generator = &compiler;
  contextOptions.hostCompiler = Compiler::hostCompiler();
  contextOptions.log = logToStderr(false);
  Expected<std::shared_ptr<Context>> context = Context::create(std::move(contextOptions));
  if (!context) return reportError(context.error());
  auto device = (*context)->device(0);
  if (!device) {
    Error error = device.error();
    error.message = "bench attention needs an NVIDIA GPU: " + error.message;
    error.hint = "`tilewright doctor` says what is missing; `tilewright bench cpu` measures without a GPU";
    return reportError(error);
  }
  Expected<Target> target = Target::forComputeCapability((*device)->info().major, (*device)->info().minor);
  if (!target) return reportError(target.error());
  Expected<LaunchTimer> timer = LaunchTimer::create(**context, *target);
  if (!timer) return reportError(timer.error());
  std::optional<GpuMonitor> monitor;
  Expected<std::string> address = pciAddressOf(**device);
  Expected<GpuMonitor> started = address ? GpuMonitor::start(*address) : Expected<GpuMonitor>(propagate(address));
  if (started)
    monitor.emplace(std::move(*started));
  else
    toStderr("tilewright: warning: no clock and power: {}\n", started.error().message);
  Expected<Peers> peers = [&] {
    Progress progress("starting the peers");
    return Peers::create(options.peers, options.python, InterruptGuard::requested());
  }();
  if (!peers) return reportError(peers.error());

  Bench bench{options, std::move(*overrides), *context,           *device,
              *target, std::move(*timer),     std::move(monitor), std::move(*peers)};
  Expected<BenchResult> result = runAll(bench, *cases);
  if (!result) return reportError(result.error());
  fmt::print("{}", toText(*result));
  for (const std::string *path : {&options.json, &options.html})
    if (!path->empty() && !result->cells.empty()) fmt::print("wrote {}\n", *path);
  for (const CellResult &cell : result->cells)
    if (!cell.own.series) return kError;
  return result->interrupted ? kError : kSuccess;
}

} // namespace

void addBenchAttention(CLI::App &bench, int &exitCode) {
  auto options = std::make_shared<Options>();
  CLI::App *command = bench.add_subcommand(
      "attention", "A grid of attention problems on the GPU against cuDNN, FlashAttention and FlexAttention");
  CLI::App *grid = command->add_option_group("Grid");
  GridOptions &g = options->grid;
  grid->add_option("--dims", g.dims, "Head dims, D or DQK:DV with commas")->capture_default_str();
  CLI::Option *seqs =
      grid->add_option("--seqs", g.seqs, "Sequence lengths, S or SQ:SK with commas")->capture_default_str();
  grid->add_option("--masks", g.masks, "none, causal, window:N (causal, the last N keys) with commas")
      ->capture_default_str();
  grid->add_option("--heads", g.heads, "H or H:HKV; auto is hidden / dim")->capture_default_str();
  grid->add_option("--tokens", g.tokens, "Query tokens of a cell: batch is tokens / seq, at least 1")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->capture_default_str();
  grid->add_option("--hidden", g.hidden, "heads * dim, where --heads is auto")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  grid->add_option("--dtype", g.dtype, "bf16 or fp16")->capture_default_str();
  grid->add_flag("--backward", g.backward, "Measure the gradients instead of the forward");
  grid->add_option("--cases", g.cases,
                   "table (the grid), hopper (named shapes: unequal dims, windows, long caches, "
                   "decode), or both with a comma")
      ->capture_default_str();
  CLI::Option *quick =
      grid->add_flag("--quick", options->quick, fmt::format("Short: the same as --seqs {}", kQuickSeqs));
  quick->excludes(seqs);

  CLI::App *how = command->add_option_group("How");
  how->add_option("--schedule", options->schedule, "Schedule fields, as for run");
  how->add_option("--peers", options->peers, "auto (all there are), none, or cudnn, fa2, flex with commas")
      ->capture_default_str();
  how->add_option("--python", options->python, "Python with PyTorch, which measures the peers")->capture_default_str();
  how->add_option("--repeats", options->series.repeats, "Launches that the median is taken of")
      ->check(CLI::Range(1, 300)) // what a driver queues without waiting is about a thousand launches and events
      ->capture_default_str();
  how->add_flag("--errors", options->errors, "Also errors against double precision, Tilewright's and cuDNN's");

  CLI::App *output = command->add_option_group("Output");
  output->add_option("--json", options->json, "File for all figures");
  output->add_option("--html", options->html, "File for a page with charts");
  command->footer(
      "\nPROTOCOL\n"
      "  Random normal inputs, layout (batch, seq, heads, dim). Each series: 0.3 s of pause, 10 warm-ups, then "
      "launches timed\n"
      "  one by one with events behind a kernel that fills the queue; the median counts. Every cell measures "
      "Tilewright and\n"
      "  the peers in turn: compare within a run, not between runs. FLOPs are 4 * pairs * heads * batch * (DQK + DV) / "
      "2,\n"
      "  2.5 times that for gradients; pairs are SQ * SK, half of it when causal, and what is visible in a window.\n"
      "  FA3 is not run: its column is cuDNN's figure of this run times their ratio in an earlier one.\n"
      "  An interrupt (Ctrl-C) ends the run and keeps what was measured.\n"
      "\nEXAMPLES\n"
      "  tilewright bench attention --quick\n"
      "  tilewright bench attention --json bench.json --html bench.html\n"
      "  tilewright bench attention --cases hopper --peers cudnn,fa2\n"
      "  tilewright bench attention --dims 128 --seqs 4096 --masks causal --errors\n"
      "  tilewright bench attention --backward --dims 64,128 --html backward.html\n");
  command->callback([options, &exitCode] {
    if (options->quick) options->grid.seqs = kQuickSeqs;
    exitCode = run(*options);
  });
}

} // namespace tilewright::tool
