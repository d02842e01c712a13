#include "BenchTraining.h"
#include "../bench/Stderr.h"
#include "../bench/TemporaryFolder.h"
#include "Commands.h"
#include "Console.h"
#include "OptionChecks.h"
#include "RankLauncher.h"
#include "TrainSession.h"
#include "tilewright/cuda/Driver.h"
#include "tilewright/train/StepBench.h"
#include <fmt/format.h>
#include <fstream>

namespace tilewright::tool {
namespace {

struct TrainingBench {
  bool zero = false; ///< Else ddp.
  std::string model = "tiny", backend = "gloo", precision = "auto", resultFile;
  int ranks = 2;
  int64_t batch = 2, steps = 10, warmup = 2;
  std::optional<int64_t> bucketMB; ///< Zero's.

  /// The transports' usual ones (Transport::usualBucketBytes), in round millions.
  int64_t usualBucketMB() const { return bucketMB.value_or(backend == "nccl" ? 200 : 25); }
  std::optional<int64_t> context, layers;
  bool json = false;
};

struct Mode {
  std::string name;
  dist::Strategy strategy;
  int64_t bucketMB = 25; ///< Of 10^6 bytes, as the course notes count.
  bool alone = false;    ///< Every rank for itself: what a step costs without communication.
};

std::vector<Mode> modesOf(const TrainingBench &options) {
  using S = dist::Strategy;
  std::vector<Mode> modes = {{"no communication", S::Bucketed, options.usualBucketMB(), true}};
  if (options.zero) {
    modes.insert(modes.end(), {{"bucketed", S::Bucketed, options.usualBucketMB()},
                               {"zero1-broadcast", S::Zero1Broadcast, options.usualBucketMB()},
                               {"zero1", S::Zero1, options.usualBucketMB()}});
    return modes;
  }
  modes.insert(modes.end(), {{"naive", S::Naive}, {"flat", S::Flat}, {"overlap", S::Overlap}});
  for (int64_t mb : {1, 10, 100, 1000})
    modes.push_back({fmt::format("bucketed {} MB", mb), S::Bucketed, mb});
  modes.push_back({fmt::format("zero1 {} MB", options.usualBucketMB()), S::Zero1, options.usualBucketMB()});
  return modes;
}

Expected<train::ModelConfig> modelOf(const TrainingBench &options) {
  Expected<train::ModelConfig> model = train::ModelConfig::preset(options.model);
  if (!model) return model;
  if (options.context) model->context = *options.context;
  if (options.layers) model->layers = *options.layers;
  if (Status status = model->validate(); !status) return propagate(status);
  return model;
}

nlohmann::json rowOf(const Mode &mode, const train::StepBenchResult &r) {
  nlohmann::json memory;
  for (int c = 0; c < dist::kCategories; ++c)
    memory[std::string(toString(static_cast<dist::Category>(c)))] = r.memory.of(static_cast<dist::Category>(c));
  return {{"mode", mode.name},      {"strategy", toString(mode.strategy)},
          {"calls", r.calls},       {"sent_bytes", r.sentBytes},
          {"step_ms", r.median()},  {"compute_ms", r.computeMs},
          {"wait_ms", r.waitMs},    {"communication_ms", r.communicationMs},
          {"memory_bytes", memory}, {"bucket_mb", mode.bucketMB}};
}

/// On what the ranks compute: it goes with what they talk over.
Expected<SessionOptions> machineOf(const TrainingBench &options) {
  if (options.backend != "gloo" && options.backend != "nccl")
    return fail(Stage::Input, fmt::format("--backend: expected gloo or nccl, found '{}'", options.backend),
                "--backend gloo computes on the CPU");
  SessionOptions machine;
  machine.target = options.backend == "nccl" ? "cuda" : "cpu";
  if (options.precision != "auto") {
    Expected<ElementType> type = parseTrainingType("--precision", options.precision);
    if (!type) return propagate(type);
    machine.precision = *type;
  }
  return machine;
}

/// As one rank: rank 0 writes the rows.
Status benchAsRank(const TrainingBench &options) {
  Expected<train::ModelConfig> config = modelOf(options);
  if (!config) return propagate(config);
  Expected<SessionOptions> machine = machineOf(options);
  if (!machine) return propagate(machine);
  Expected<std::unique_ptr<TrainSession>> opened = TrainSession::open(*machine);
  if (!opened) return propagate(opened);
  TrainSession &s = **opened;
  Expected<std::unique_ptr<train::Transformer>> model =
      train::Transformer::create(*config, *s.backend, options.batch, true);
  if (!model) return propagate(model);
  nlohmann::json rows = nlohmann::json::array();
  for (const Mode &mode : modesOf(options)) {
    dist::StrategyOptions strategy;
    strategy.strategy = mode.strategy;
    strategy.bucketBytes = mode.bucketMB * 1000000;
    strategy.worldSize = mode.alone ? 1 : s.job.worldSize;
    strategy.activationBytes = train::Transformer::activationBytes(*config, options.batch, true, *s.backend);
    strategy.parameterType = s.precision;
    // What a device and a transport allocate lives as long as they do: each mode's own goes before the next.
    Expected<Connection> connection = mode.alone ? s.connectAlone() : s.connect();
    if (!connection) return propagate(connection);
    Expected<train::StepBenchResult> result = train::benchSteps(
        **model, strategy, options.batch, options.warmup, options.steps, *connection->transport, *connection->device);
    if (!result) return propagate(result);
    if (s.first()) toStderr("{}: {:.1f} ms\n", mode.name, result->median());
    rows.push_back(rowOf(mode, *result));
  }
  if (!s.first()) return {};
  nlohmann::json json = {{"model", nlohmann::json::parse(config->json())},
                         {"parameters", config->parameterCount()},
                         {"ranks", s.job.worldSize},
                         {"backend", options.backend},
                         {"precision", toString(s.precision)},
                         {"batch", options.batch},
                         {"steps", options.steps},
                         {"compute", s.backend->description()},
                         {"rows", rows}};
  std::ofstream file(options.resultFile);
  file << json.dump();
  file.close();
  if (!file) return fail(Stage::Output, options.resultFile + ": cannot write");
  return {};
}

Status hasGpus(int ranks) {
  Expected<Environment> environment = Environment::ofProcess();
  if (!environment) return propagate(environment);
  constexpr const char *remedy = "--backend gloo computes on the CPU";
  auto driver = cuda::Driver::open(environment->cudaDriver);
  if (!driver) {
    driver.error().hint += (driver.error().hint.empty() ? "" : "; ") + std::string(remedy);
    return propagate(driver);
  }
  const size_t found = (*driver)->devices().size();
  if (found >= static_cast<size_t>(ranks)) return {};
  return fail(Stage::Input, fmt::format("--backend nccl: {} ranks take a GPU each; this machine has {}", ranks, found),
              fmt::format("--ranks {}; {}", found, remedy));
}

Expected<nlohmann::json> benchAll(const TrainingBench &options) {
  Expected<SessionOptions> machine = machineOf(options);
  if (!machine) return propagate(machine);
  if (machine->target == "cuda")
    if (Status status = hasGpus(options.ranks); !status) return propagate(status);
  Expected<train::ModelConfig> model = modelOf(options);
  if (!model) return propagate(model);
  Expected<bench::TemporaryFolder> folder = bench::TemporaryFolder::make("bench");
  if (!folder) return propagate(folder);
  const std::string file = (folder->path() / "result.json").string();
  LaunchOptions launch;
  launch.ranks = options.ranks;
  launch.command = {"/proc/self/exe",
                    "bench",
                    options.zero ? "zero" : "ddp",
                    "--result-file",
                    file,
                    "--backend",
                    options.backend,
                    "--precision",
                    options.precision,
                    "--model",
                    options.model,
                    "--context",
                    fmt::format("{}", model->context),
                    "--layers",
                    fmt::format("{}", model->layers),
                    "--batch",
                    fmt::format("{}", options.batch),
                    "--steps",
                    fmt::format("{}", options.steps),
                    "--warmup",
                    fmt::format("{}", options.warmup)};
  if (options.zero)
    launch.command.insert(launch.command.end(), {"--bucket", fmt::format("{}", options.usualBucketMB())});
  Expected<LaunchResult> launched = launchRanks(launch);
  if (!launched) return propagate(launched);
  if (launched->exitCode != 0) return fail(Stage::Communicate, launched->failure);
  std::ifstream result(file);
  nlohmann::json json = nlohmann::json::parse(result, nullptr, false);
  if (!json.is_object()) return fail(Stage::Output, "the ranks left no result");
  return json;
}

void addOne(CLI::App &bench, int &exitCode, bool zero) {
  CLI::App *command = bench.add_subcommand(
      zero ? "zero" : "ddp", zero ? "ZeRO-1 against data parallel: optimizer state, steady memory, step time"
                                  : "Data-parallel strategies: calls, step, communication, against no communication");
  auto options = std::make_shared<TrainingBench>();
  options->zero = zero;
  command->add_option("--model", options->model, "tiny | small | medium")->capture_default_str();
  command->add_option("--ranks", options->ranks, "Of this machine")->check(CLI::Range(1, 64))->capture_default_str();
  command->add_option("--backend", options->backend, "gloo: on the CPU | nccl: on GPUs")->capture_default_str();
  command->add_option("--precision", options->precision, "auto | fp32 | bf16; auto: bf16 on GPUs, else fp32")
      ->capture_default_str();
  command->add_option("--batch", options->batch, "Sequences a rank")->check(CLI::Range(1, 4096))->capture_default_str();
  command->add_option("--context", options->context, "Tokens a sequence (default: the preset's)");
  command->add_option("--layers", options->layers, "Instead of the preset's");
  command->add_option("--steps", options->steps, "Measured")->check(CLI::Range(1, 100000))->capture_default_str();
  command->add_option("--warmup", options->warmup, "Not measured")->check(CLI::Range(0, 1000))->capture_default_str();
  if (zero)
    command
        ->add_option("--bucket", options->bucketMB,
                     "Millions of bytes of gradients a message (default 25 over gloo, 200 over nccl)")
        ->check(CLI::Range(1, 100000));
  command->add_flag("--json", options->json, "One JSON object on stdout");
  command->add_option("--result-file", options->resultFile)->group(""); // how the ranks answer
  command->callback([options, &exitCode] {
    if (!options->resultFile.empty()) {
      if (Status status = benchAsRank(*options); !status) exitCode = reportError(status.error());
      return;
    }
    Expected<nlohmann::json> result = benchAll(*options);
    if (!result)
      exitCode = reportError(result.error());
    else
      fmt::print("{}\n", options->json ? result->dump() : options->zero ? zeroTable(*result) : ddpTable(*result));
  });
}

} // namespace

void addBenchTraining(CLI::App &bench, int &exitCode) {
  addOne(bench, exitCode, false);
  addOne(bench, exitCode, true);
}

} // namespace tilewright::tool
