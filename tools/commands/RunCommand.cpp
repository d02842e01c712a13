// `tilewright run`: the main job, from a stated problem to results on the best machine at hand.
#include "AttentionRun.h"
#include "Commands.h"
#include "Console.h"
#include "OptionChecks.h"
#include "TilePicture.h"
#include "tilewright/Compiler.h"
#include "tilewright/tensor/Npy.h"
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::tool {
namespace {

struct RunOptions {
  ProblemOptions problem;
  std::string out;
  bool verify = false, json = false, verbose = false, picture = false;
  int64_t verifyRows = 0;
  int device = 0;
};

struct Report {
  ProblemInputs inputs;
  Target target;
  AttentionRun run;
  TileMap tiles;
  std::optional<Verification> verification;
  int64_t emptyRows = 0;
  bool inputsNonFinite = false;

  double forwardTflops() const { return attentionFlops(forwardProblem(), tiles.visiblePairs) / run.forwardMs() * 1e-9; }
  double backwardTflops() const {
    Problem problem = inputs.problem;
    problem.direction = Direction::Backward;
    return attentionFlops(problem, tiles.visiblePairs) / run.backwardMs() * 1e-9;
  }
  double scoreMatrixBytes() const {
    const Problem &p = inputs.problem;
    return static_cast<double>(p.batch) * p.headsQ * p.seqQ * p.seqKV * sizeInBytes(p.dtype);
  }
  bool ok() const { return !verification || verification->ok; }

private:
  Problem forwardProblem() const {
    Problem problem = inputs.problem;
    problem.direction = Direction::Forward;
    return problem;
  }
};

/// Single rows may see nothing; a mask that hides every key from every query is a mistake in the mask.
Status checkMaskSees(const Problem &problem, const TileMap &tiles) {
  if (problem.mask.empty() || tiles.visiblePairs > 0) return {};
  if (problem.batch == 0 || problem.seqQ == 0 || problem.seqKV == 0) return {};
  return fail(Stage::Input,
              fmt::format("mask: no query sees any key: {} is false at each of the {} x {} positions",
                          problem.fullMask(), problem.seqQ, problem.seqKV),
              "check the direction of its comparisons and its tables");
}

int64_t countEmptyRows(const Tensor &lse) {
  const float *values = static_cast<const float *>(lse.data());
  int64_t count = lse.bytes() / 4, empty = 0;
  for (int64_t i = 0; i < count; ++i)
    empty += std::isinf(values[i]) && values[i] < 0;
  return empty;
}

Status writeOutputs(const std::string &folder, const AttentionRun &run) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) return fail(Stage::Input, fmt::format("--out {}: cannot create the folder: {}", folder, code.message()));
  std::filesystem::path path = folder;
  std::vector<NpyFile> files = {npyFile(path / "o.npy", run.o), npyFileOfRows(path / "lse.npy", run.lse)};
  if (run.dQ.valid()) {
    files.push_back(npyFile(path / "dq.npy", run.dQ));
    files.push_back(npyFile(path / "dk.npy", run.dK));
    files.push_back(npyFile(path / "dv.npy", run.dV));
  }
  return writeNpy(files);
}

nlohmann::json toJson(const Report &report) {
  const AttentionRun &run = report.run;
  nlohmann::json kernels = nlohmann::json::array();
  for (const KernelRun &k : run.kernels) {
    const KernelPlan &plan = k.kernel.plan();
    const PrepareReport &prepared = k.kernel.report();
    kernels.push_back({{"role", toString(plan.role)},
                       {"schedule", plan.schedule},
                       {"plan", plan.hash()},
                       {"tuning", toString(k.origin)},
                       {"symbol", plan.symbol()},
                       {"ms", k.milliseconds},
                       {"cache",
                        {{"hit", prepared.cacheHit()},
                         {"origin", toString(prepared.origin)},
                         {"compile_ms", prepared.generateMs + prepared.compileMs},
                         {"load_ms", prepared.loadMs},
                         {"total_ms", prepared.totalMs}}}});
    if (!k.from.empty()) kernels.back()["tuned_for"] = k.from;
  }
  nlohmann::json json = {{"problem", report.inputs.problem},
                         {"target", report.target.name},
                         {"schedule", run.forward().kernel.plan().schedule},
                         {"plan", run.forward().kernel.plan().hash()},
                         {"tiles",
                          {{"empty", report.tiles.counts.empty},
                           {"full", report.tiles.counts.full},
                           {"partial", report.tiles.counts.partial}}},
                         {"ms", run.forwardMs()},
                         {"tflops", report.forwardTflops()},
                         {"score_matrix_bytes", report.scoreMatrixBytes()},
                         {"rows_that_see_nothing", report.emptyRows},
                         {"visible_pairs", report.tiles.visiblePairs},
                         {"cache", {{"hit", run.allHits()}, {"compile_ms", run.compileMs()}}},
                         {"kernels", kernels},
                         {"ok", report.ok()}};
  if (report.inputs.problem.direction == Direction::Backward) {
    json["backward_ms"] = run.backwardMs();
    json["backward_tflops"] = report.backwardTflops();
  }
  if (report.inputsNonFinite) json["inputs_non_finite"] = true;
  if (report.verification) {
    const Verification &v = *report.verification;
    nlohmann::json errors;
    std::pair<const char *, const std::optional<ErrorFigures> *> all[] = {
        {"o", &v.o}, {"lse", &v.lse}, {"dq", &v.dQ}, {"dk", &v.dK}, {"dv", &v.dV}};
    for (auto &[name, figures] : all)
      if (*figures) errors[name] = **figures;
    json["errors"] = errors;
  }
  return json;
}

void printErrorLine(const char *name, const std::optional<ErrorFigures> &figures) {
  if (!figures) return;
  fmt::print("  {:<4} max error {:.2e}, {:.2f} of the naive computation's in this dtype{}\n", name, figures->maxAbs,
             figures->relativeToNaive, figures->ok ? "" : " <- WRONG");
}

void print(const Report &report, bool picture) {
  const Problem &p = report.inputs.problem;
  const AttentionRun &run = report.run;
  fmt::print("problem   {} x {} heads ({} kv), q {} x kv {}, dim {}{}, {}, {}\n", p.batch, p.headsQ, p.headsKV, p.seqQ,
             p.seqKV, p.dimQK, p.dimV != p.dimQK ? fmt::format(":{}", p.dimV) : "", toString(p.dtype),
             toString(p.layout));
  if (std::string mask = p.fullMask(); !mask.empty()) fmt::print("mask      {}\n", mask);
  if (std::string score = p.fullScore(); !score.empty()) fmt::print("score     {}\n", score);
  fmt::print("target    {}{}\n", report.target.name, report.target.isCpu() ? " (" + report.target.cpuLevel + ")" : "");
  for (const KernelRun &k : run.kernels) {
    const PrepareReport &r = k.kernel.report();
    fmt::print("{:<9} {}  {}{}  {}\n", toString(k.kernel.plan().role), k.kernel.plan().schedule.canonicalText(),
               tuningNote(k.origin, k.from),
               r.cacheHit() ? fmt::format("cached, ready in {:.1f} ms", r.totalMs)
                            : fmt::format("compiled in {:.0f} ms", r.generateMs + r.compileMs),
               fmt::format("{:.3f} ms", k.milliseconds));
  }
  const TileCounts &c = report.tiles.counts;
  fmt::print("plan      {}\n", run.forward().kernel.plan().hash().substr(0, 16));
  fmt::print("tiles     {} skipped, {} full, {} partial\n", c.empty, c.full, c.partial);
  if (picture) fmt::print("{}", drawTiles(report.tiles));
  fmt::print("forward   {:.3f} ms, {:.3f} TFLOP/s\n", run.forwardMs(), report.forwardTflops());
  if (p.direction == Direction::Backward)
    fmt::print("backward  {:.3f} ms, {:.3f} TFLOP/s\n", run.backwardMs(), report.backwardTflops());
  fmt::print("never existed: a score matrix of {}\n", formatBytes(report.scoreMatrixBytes()));
  if (report.emptyRows)
    fmt::print("note      {} of {} query rows see no key: o = 0, lse = -inf\n", report.emptyRows,
               p.batch * p.headsQ * p.seqQ);
  if (report.inputsNonFinite) fmt::print("note      the inputs hold NaN or infinity; rows that see them give NaN\n");
  if (!report.verification) return;
  const Verification &v = *report.verification;
  fmt::print("verified against standard attention in double precision{}:\n",
             v.rows.empty() ? "" : fmt::format(", {} rows a head", v.rows.size()));
  printErrorLine("o", v.o);
  printErrorLine("lse", v.lse);
  printErrorLine("dq", v.dQ);
  printErrorLine("dk", v.dK);
  printErrorLine("dv", v.dV);
  fmt::print("{}\n", v.ok ? "ok" : v.failure());
}

Expected<Report> makeReport(const RunOptions &options) {
  Report report;
  Expected<Target> target = chooseTarget(options.problem.target);
  if (!target) return propagate(target);
  report.target = *target;
  Expected<ScheduleOverrides> overrides = ScheduleOverrides::parse(options.problem.schedule);
  if (!overrides) return propagate(overrides);
  Expected<ProblemInputs> inputs = makeInputs(options.problem, true);
  if (!inputs) return propagate(inputs);
  report.inputs = std::move(*inputs);
  const RandomTensors &t = report.inputs.tensors;
  report.inputsNonFinite =
      report.inputs.fromFiles && (hasNonFinite(t.q.view()) || hasNonFinite(t.k.view()) || hasNonFinite(t.v.view()) ||
                                  (t.dO.valid() && hasNonFinite(t.dO.view())));

  static Compiler compiler;
  ContextOptions contextOptions;
  contextOptions.generator = &compiler;
  contextOptions.hostCompiler = Compiler::hostCompiler();
  contextOptions.log = logToStderr(options.verbose);
  Expected<std::shared_ptr<Context>> context = Context::create(contextOptions);
  if (!context) return propagate(context);
  Expected<AttentionRun> run = runAttention(**context, report.inputs, report.target, *overrides, options.device);
  if (!run) return propagate(run);
  report.run = std::move(*run);
  report.emptyRows = countEmptyRows(report.run.lse);

  const Schedule &schedule = report.run.forward().kernel.plan().schedule;
  Expected<TileMap> tiles =
      TileMap::make(report.inputs.problem, schedule.tileQ, schedule.tileKV, report.inputs.tableData());
  if (!tiles) return propagate(tiles);
  report.tiles = std::move(*tiles);
  if (Status status = checkMaskSees(report.inputs.problem, report.tiles); !status) return propagate(status);

  if (options.verify) {
    Progress progress("computing the double-precision reference");
    AttentionInputs reference{t.q.view(), t.k.view(), t.v.view(), t.dO.view(), report.inputs.tableData()};
    Expected<Verification> verification =
        verifyAttention(report.inputs.problem, reference, report.run.outputs(), {.rows = options.verifyRows});
    if (!verification) return propagate(verification);
    report.verification = std::move(*verification);
  }
  if (!options.out.empty())
    if (Status status = writeOutputs(options.out, report.run); !status) return propagate(status);
  return report;
}

} // namespace

void addRunCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("run", "Compute attention, forward and on request gradients");
  auto options = std::make_shared<RunOptions>();
  options->problem.addTo(*command, true);
  CLI::App *output = command->add_option_group("Output");
  output
      ->add_option("--out", options->out,
                   "Write o.npy, lse.npy and with --backward dq.npy, dk.npy, dv.npy into this folder")
      ->check(notEmpty());
  output->add_flag("--verify", options->verify, "Compare with standard attention in double precision");
  output->add_option("--verify-rows", options->verifyRows, "Check only so many query rows a head (o, lse, dq)")
      ->check(wholeNumber())
      ->needs("--verify");
  output->add_flag("--picture", options->picture, "Show which tiles are full, partial and skipped");
  output->add_flag("--json", options->json, "One JSON object on stdout");
  output->add_option("--device", options->device, "GPU to use, from 0")->capture_default_str();
  output->add_flag("--verbose", options->verbose, "Say what is compiled and where it is cached");
  command->footer(std::string(kExpressionHelp) +
                  "\nEXAMPLES\n"
                  "  tilewright run --heads 8:2 --seq 2048 --dim 128 --causal --verify\n"
                  "  tilewright run --seq 1000 --mask 'k < 64 || k <= q && q - k < 256' --picture\n"
                  "  tilewright run --score 's - 0.1 * abs(q - k)' --backward --verify --target cpu\n"
                  "  tilewright run --q q.npy --k k.npy --v v.npy --dtype fp32 --causal --out results\n");
  command->callback([options, &exitCode] {
    Expected<Report> report = makeReport(*options);
    if (!report) {
      exitCode = reportError(report.error());
      return;
    }
    if (options->json)
      fmt::print("{}\n", toJson(*report).dump());
    else
      print(*report, options->picture);
    exitCode = report->ok() ? kSuccess : kWrongResult;
  });
}

} // namespace tilewright::tool
