#include "BenchCpu.h"

#include "Commands.h"
#include "Console.h"
#include "StandardAttention.h"
#include "tilewright/Attention.h"
#include "tilewright/Compiler.h"
#include "tilewright/tensor/AlignedBuffer.h"
#include "tilewright/tensor/Random.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::tool {
namespace {

struct CpuBenchOptions {
  std::vector<int64_t> seqs = {4096}, dims = {64, 128};
  int64_t heads = 4;
  int threads = 0, repeats = 5;
  std::string schedule;
  bool json = false;
};

/// One line of the table. Milliseconds are medians.
struct CpuBenchRow {
  int64_t seq = 0, dim = 0;
  bool causal = false;
  double tilewrightMs = 0, standardMs = 0, compileMs = 0;
  StandardAttention::Threading threading = StandardAttention::Threading::Inside;
  double gflops = 0, standardGflops = 0; ///< Counting visible pairs only.
  int64_t scratchBytes = 0, scoreBytes = 0;
  double maxDifference = 0; ///< Between the two results.
  double speedup() const { return standardMs / tilewrightMs; }
};

template <class F> double timed(F &&once) {
  auto start = std::chrono::steady_clock::now();
  once();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Measures one shape. Both contestants take turns, so that a busy machine slows both alike.
Expected<CpuBenchRow> measure(const Problem &problem, const CpuBenchOptions &options, Context &context,
                              StandardAttention &standard, ThreadPool &pool) {
  Expected<ScheduleOverrides> overrides = ScheduleOverrides::parse(options.schedule);
  if (!overrides) return propagate(overrides);
  Target target = Target::hostCpu();
  target.threads = pool.threads();
  Expected<Attention> attention = Attention::prepare(context, problem, target, *overrides);
  if (!attention) return propagate(attention);
  Expected<RandomTensors> tensors = randomTensors(problem, 1);
  if (!tensors) return propagate(tensors);
  Expected<Tensor> o = Tensor::zeros(ElementType::F32, shapeOfO(problem), problem.layout, "o");
  if (!o) return propagate(o);
  Expected<Tensor> expected = Tensor::zeros(ElementType::F32, shapeOfO(problem), problem.layout, "o");
  if (!expected) return propagate(expected);
  Expected<Tensor> lse = Tensor::zeros(ElementType::F32, shapeOfLse(problem), Layout::BHSD, "lse");
  if (!lse) return propagate(lse);

  KernelArgs args = argsFor(problem);
  args.q = tensors->q.ref();
  args.k = tensors->k.ref();
  args.v = tensors->v.ref();
  args.o = o->ref();
  args.lse = static_cast<float *>(lse->data());
  Expected<AlignedBuffer> workspace =
      AlignedBuffer::zeros(attention->workspaceBytes(Direction::Forward, args), "workspace");
  if (!workspace) return propagate(workspace);
  attention->useWorkspace(Direction::Forward, workspace->data(), args);
  StandardProblem reference{problem.headsQ,
                            problem.seqQ,
                            problem.dimQK,
                            args.scale,
                            problem.causal,
                            static_cast<const float *>(tensors->q.data()),
                            static_cast<const float *>(tensors->k.data()),
                            static_cast<const float *>(tensors->v.data()),
                            static_cast<float *>(expected->data())};

  using Threading = StandardAttention::Threading;
  std::vector<double> ours, inside, heads;
  for (int i = 0; i <= options.repeats; ++i) { // the first round warms up
    Status status;
    double own = timed([&] { status = attention->forward(nullptr, args); });
    if (!status) return propagate(status);
    double a = timed([&] { standard.run(reference, Threading::Inside, pool); });
    double b = timed([&] { standard.run(reference, Threading::Heads, pool); });
    if (i == 0) continue;
    ours.push_back(own);
    inside.push_back(a);
    heads.push_back(b);
  }

  CpuBenchRow row;
  row.seq = problem.seqQ;
  row.dim = problem.dimQK;
  row.causal = problem.causal;
  row.tilewrightMs = median(ours);
  for (const Kernel &kernel : attention->kernels())
    row.compileMs += kernel.report().generateMs;
  row.threading = median(inside) <= median(heads) ? Threading::Inside : Threading::Heads;
  row.standardMs = std::min(median(inside), median(heads));
  double pairs = static_cast<double>(row.seq) * (row.causal ? row.seq + 1 : 2 * row.seq) / 2;
  double flops = attentionFlops(problem, pairs);
  row.gflops = flops / row.tilewrightMs * 1e-6;
  row.standardGflops = flops / row.standardMs * 1e-6;
  row.scratchBytes = attention->kernels().front().report().scratchBytes * pool.threads() + workspace->size();
  row.scoreBytes = StandardAttention::scoreBytes(reference, row.threading, pool.threads());
  const auto *a = static_cast<const float *>(o->data()), *b = static_cast<const float *>(expected->data());
  for (int64_t i = 0; i < o->bytes() / 4; ++i)
    row.maxDifference = std::max<double>(row.maxDifference, std::fabs(a[i] - b[i]));
  return row;
}

std::string_view nameOf(StandardAttention::Threading threading) {
  return threading == StandardAttention::Threading::Inside ? "inside" : "heads";
}

void printJson(const std::vector<CpuBenchRow> &rows, const CpuBenchOptions &options, const std::string &library,
               int threads) {
  nlohmann::json list = nlohmann::json::array();
  for (const CpuBenchRow &r : rows)
    list.push_back({{"seq", r.seq},
                    {"dim", r.dim},
                    {"heads", options.heads},
                    {"causal", r.causal},
                    {"ms", r.tilewrightMs},
                    {"gflops", r.gflops},
                    {"standard_ms", r.standardMs},
                    {"standard_gflops", r.standardGflops},
                    {"standard_threading", nameOf(r.threading)},
                    {"speedup", r.speedup()},
                    {"scratch_bytes", r.scratchBytes},
                    {"standard_score_bytes", r.scoreBytes},
                    {"max_difference", r.maxDifference},
                    {"generate_ms", r.compileMs}});
  fmt::print(
      "{}\n",
      nlohmann::json{{"level", Target::hostCpu().cpuLevel}, {"threads", threads}, {"standard", library}, {"rows", list}}
          .dump());
}

void printTable(const std::vector<CpuBenchRow> &rows, const CpuBenchOptions &options, const std::string &library,
                int threads) {
  fmt::print("fp32, {} heads, {} thread{}, {}, medians of {}\nstandard attention on {}\n\n", options.heads, threads,
             threads == 1 ? "" : "s", Target::hostCpu().cpuLevel, options.repeats, library);
  fmt::print("{:>6} {:>4} {:>7} {:>10} {:>8} {:>10} {:>8} {:>8} {:>10} {:>10} {:>9}\n", "seq", "dim", "mask", "ms",
             "GFLOP/s", "std ms", "GFLOP/s", "speedup", "memory", "std memory", "max diff");
  for (const CpuBenchRow &r : rows)
    fmt::print("{:>6} {:>4} {:>7} {:>10.1f} {:>8.1f} {:>10.1f} {:>8.1f} {:>7.2f}x {:>10} {:>10} {:>9.1e}\n", r.seq,
               r.dim, r.causal ? "causal" : "none", r.tilewrightMs, r.gflops, r.standardMs, r.standardGflops,
               r.speedup(), formatBytes(static_cast<double>(r.scratchBytes)),
               formatBytes(static_cast<double>(r.scoreBytes)), r.maxDifference);
}

Expected<std::vector<CpuBenchRow>> measureAll(const CpuBenchOptions &options, StandardAttention &standard,
                                              int &threads) {
  Expected<Environment> environment = Environment::ofProcess();
  if (!environment) return propagate(environment);
  if (options.threads > 0) environment->threads = options.threads;
  Compiler compiler;
  ContextOptions contextOptions;
  contextOptions.generator = &compiler;
  contextOptions.hostCompiler = Compiler::hostCompiler();
  contextOptions.cacheDir = ""; // compile, so that the time of it is measured too
  contextOptions.environment = std::move(*environment);
  Expected<std::shared_ptr<Context>> context = Context::create(std::move(contextOptions));
  if (!context) return propagate(context);
  threads = (*context)->threads();
  ThreadPool pool(threads);
  std::vector<CpuBenchRow> rows;
  for (int64_t seq : options.seqs)
    for (int64_t dim : options.dims)
      for (bool causal : {false, true}) {
        Progress progress(fmt::format("seq {} dim {}{}", seq, dim, causal ? " causal" : ""));
        Problem problem;
        problem.headsQ = problem.headsKV = options.heads;
        problem.seqQ = problem.seqKV = seq;
        problem.dimQK = problem.dimV = dim;
        problem.dtype = DType::F32;
        problem.layout = Layout::BHSD;
        problem.causal = causal;
        Expected<CpuBenchRow> row = measure(problem, options, **context, standard, pool);
        if (!row) return propagate(row);
        rows.push_back(*row);
      }
  return rows;
}

int runBenchCpu(const CpuBenchOptions &options) {
  Expected<StandardAttention> standard = StandardAttention::open();
  if (!standard) return reportError(standard.error());
  int threads = 1;
  Expected<std::vector<CpuBenchRow>> rows = measureAll(options, *standard, threads);
  if (!rows) return reportError(rows.error());
  (options.json ? printJson : printTable)(*rows, options, standard->library(), threads);
  return kSuccess;
}

} // namespace

void addBenchCpu(CLI::App &bench, int &exitCode) {
  auto options = std::make_shared<CpuBenchOptions>();
  CLI::App *command =
      bench.add_subcommand("cpu", "Forward attention in fp32 on the CPU against standard attention on OpenBLAS");
  command->add_option("--seq", options->seqs, "Sequence lengths")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--dim", options->dims, "Head dims")
      ->delimiter(',')
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  command->add_option("--heads", options->heads, "Heads")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--threads", options->threads, "Threads of both; 0 is one a hardware thread")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Rounds that the medians are taken of")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--schedule", options->schedule, "Schedule fields, as for run");
  command->add_flag("--json", options->json, "One JSON object on stdout");
  command->callback([options, &exitCode] { exitCode = runBenchCpu(*options); });
}

} // namespace tilewright::tool
