// `tilewright train`: trains the transformer, on one rank or as one of many.
#include "../bench/Stderr.h"
#include "Commands.h"
#include "Console.h"
#include "TrainFlags.h"
#include "TrainReport.h"
#include "TrainSession.h"
#include "tilewright/distributed/transport/RankAgreement.h"
#include "tilewright/distributed/transport/ScheduleAgreement.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <ctime>
#include <fmt/format.h>
#include <unistd.h>

namespace tilewright::tool {
namespace {

std::atomic<int> stopSignal{0};
std::atomic<int64_t> firstSignalSeconds{0};
static_assert(std::atomic<int64_t>::is_always_lock_free, "used by a signal handler");

/// The first one ends the training after its step. Who asks again a second later does not want to wait for that; a
/// terminal's and the launcher's own signal arrive together and count once.
void requestStop(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t unset = 0;
  if (firstSignalSeconds.compare_exchange_strong(unset, now.tv_sec + 1))
    stopSignal = number;
  else if (now.tv_sec > unset)
    _exit(128 + number);
}

struct TrainCommandOptions {
  TrainFlags flags;
  std::string metrics;
  int64_t logEvery = 10;
  bool json = false, verbose = false;
};

void printStart(train::Trainer &trainer, const TrainSession &session, const dist::Transport &transport) {
  const train::TrainOptions &o = trainer.options();
  const train::ModelConfig &m = o.model;
  toStderr("model       {}: {} layers, width {}, {} heads, hidden {}; {} parameters, {}\n", m.name, m.layers, m.width,
           m.heads, m.hidden, m.parameterCount(), toString(o.parameterType));
  toStderr("data        {}: {} {} tokens to train, {} to validate; vocabulary {}{}\n", o.data, trainer.trainingTokens(),
           toString(o.format), trainer.validationTokens(), m.vocabulary,
           o.format == train::TokenFormat::Text ? " (tokens of text are bytes)" : "");
  toStderr("step        {} sequences of {} tokens over {} rank{}, accumulation {}\n", o.batch, m.context,
           session.job.worldSize, session.job.worldSize == 1 ? "" : "s", o.accumulation);
  toStderr("engine      {}{}; {}\n", toString(o.strategy),
           session.job.worldSize > 1 ? fmt::format(" over {}", transport.name()) : "", session.backend->description());
  const dist::MemoryByCategory memory = trainer.memory();
  std::string parts;
  for (int c = 0; c < dist::kCategories; ++c)
    parts += fmt::format("{}{} {}", c ? ", " : "", toString(static_cast<dist::Category>(c)),
                         formatBytes(static_cast<double>(memory.of(static_cast<dist::Category>(c)))));
  if (session.gpu)
    if (auto memory = session.gpu->gpu()->memory())
      parts += fmt::format("; {} of the device's {} in use",
                           formatBytes(static_cast<double>(memory->totalBytes - memory->freeBytes)),
                           formatBytes(static_cast<double>(memory->totalBytes)));
  toStderr("memory      {}\n", parts);
  if (!o.resume.empty()) {
    toStderr("resumed     after step {}\n", trainer.stepsDone());
    for (const train::OptionChange &change : trainer.changes())
      toStderr("changed     {}: {} in the checkpoint, {} now\n", change.name, change.saved, change.now);
  }
}

nlohmann::json finite(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); }

void printJson(train::Trainer &trainer, const TrainSession &session, const train::TrainResult &r) {
  const train::TrainOptions &o = trainer.options();
  const double rate = r.seconds > 0 ? r.tokens / r.seconds : 0;
  nlohmann::json memory;
  for (int c = 0; c < dist::kCategories; ++c)
    memory[std::string(toString(static_cast<dist::Category>(c)))] = trainer.memory().of(static_cast<dist::Category>(c));
  nlohmann::json json = {{"model", nlohmann::json::parse(o.model.json())},
                         {"parameters", o.model.parameterCount()},
                         {"strategy", toString(o.strategy)},
                         {"ranks", session.job.worldSize},
                         {"step", trainer.stepsDone()},
                         {"steps_run", r.steps},
                         {"steps_skipped", r.skipped},
                         {"interrupted", r.interrupted},
                         {"loss", finite(r.last.loss)},
                         {"validation_loss", r.validationLoss ? finite(*r.validationLoss) : nlohmann::json()},
                         {"tokens_per_second", rate},
                         {"mfu", modelFlopsUtilisation(trainer, rate, session.job.worldSize)},
                         {"milliseconds_per_step", r.steps ? r.seconds / static_cast<double>(r.steps) * 1e3 : 0},
                         {"checkpoint", r.checkpoint},
                         {"memory_bytes", memory}};
  fmt::print("{}\n", json.dump());
}

/// The schedules of the model's attention that rank 0 would choose.
Status agreeOnAttention(const train::TrainOptions &options, TrainSession &session, dist::Transport &transport) {
  const train::ModelConfig &model = options.model;
  Problem problem;
  problem.batch = std::max<int64_t>(1, options.batch / session.job.worldSize / options.accumulation);
  problem.headsQ = problem.headsKV = model.heads;
  problem.seqQ = problem.seqKV = model.context;
  problem.dimQK = problem.dimV = model.headDim();
  problem.dtype = session.precision == ElementType::F32 || !session.gpu ? DType::F32 : DType::BF16;
  problem.causal = true;
  problem.direction = Direction::Backward;
  const cuda::Device *gpu = session.gpu ? session.gpu->gpu().get() : nullptr;
  Expected<Target> target = gpu ? Target::forComputeCapability(gpu->info().major, gpu->info().minor)
                                : Expected<Target>(session.context->hostTarget());
  if (!target) return propagate(target);
  Expected<std::vector<PlanChoice>> plans =
      dist::chooseTogether(transport, *target, [&]() -> Expected<std::vector<PlanChoice>> {
        Expected<ScheduleOverrides> whole = ScheduleOverrides::parse("split_kv=1"); // as the model's calls want it
        if (!whole) return propagate(whole);
        Expected<std::vector<PlanChoice>> chosen = session.context->choose(problem, *target, *whole);
        // One kernel serves sequences of every length: only what was measured for the model's own is better than that.
        if (chosen) std::erase_if(*chosen, [](const PlanChoice &c) { return c.origin != ScheduleOrigin::Exact; });
        return chosen;
      });
  if (!plans) return propagate(plans);
  session.backend->useSchedules(*plans);
  if (session.first() && !plans->empty()) toStderr("attention   schedules as tuned\n");
  return {};
}

Expected<int> trainOnce(const TrainCommandOptions &options) {
  Expected<train::TrainOptions> settings = options.flags.options();
  if (!settings) return propagate(settings);
  Expected<SessionOptions> machine = options.flags.session();
  if (!machine) return propagate(machine);
  machine->verbose = options.verbose;
  Expected<std::unique_ptr<TrainSession>> session = TrainSession::open(*machine);
  if (!session) return propagate(session);
  TrainSession &s = **session;
  settings->parameterType = s.precision;
  Expected<Connection> connection = s.connect();
  if (!connection) return propagate(connection);
  if (Status status = agreeOnAttention(*settings, s, *connection->transport); !status) return propagate(status);
  Expected<std::unique_ptr<train::Trainer>> trainer =
      train::Trainer::create(*settings, *connection->transport, *connection->device, *s.backend);
  if (!trainer) return propagate(trainer);
  Expected<std::unique_ptr<TrainReport>> report =
      TrainReport::open(**trainer, s.job.rank, s.job.worldSize, options.logEvery, options.metrics);
  if (Status status = dist::agree(*connection->transport, report ? Status() : Status(propagate(report))); !status)
    return propagate(status);
  if (s.first()) printStart(**trainer, s, *connection->transport);

  struct sigaction action {};
  action.sa_handler = requestStop;
  action.sa_flags = SA_RESTART;
  for (int number : {SIGINT, SIGTERM})
    sigaction(number, &action, nullptr);
  Expected<train::TrainResult> result = train::runTraining(**trainer, **report, [] { return stopSignal != 0; });
  (*report)->finish();
  if (!result) return propagate(result);
  if (Status status = (*report)->status(); !status) return propagate(status);
  if (s.first() && options.json) printJson(**trainer, s, *result);
  if (!result->interrupted) return kSuccess;
  if (s.first() && !result->checkpoint.empty())
    toStderr("stopped     after step {} of {}; --resume {} goes on\n", (*trainer)->stepsDone(), settings->steps,
             result->checkpoint);
  return stopSignal != 0 ? 128 + stopSignal : kSuccess; // as shells have it
}

} // namespace

void addTrainCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("train", "Train a transformer on text or tokens, on one rank or many");
  auto options = std::make_shared<TrainCommandOptions>();
  options->flags.addTo(*command);
  CLI::App *output = command->add_option_group("Output");
  output->add_option("--metrics", options->metrics, "JSON lines; {rank} in the path lets every rank write its own");
  output->add_option("--log-every", options->logEvery, "Steps, where progress is not a terminal's")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  output->add_flag("--json", options->json, "One JSON object on stdout at the end");
  output->add_flag("--verbose", options->verbose, "Say which kernels are compiled");
  command->footer(
      "\nCtrl-C ends training after its step, with a checkpoint if there is a folder for them; all ranks end together."
      "\n\nEXAMPLES\n"
      "  tilewright train --data book.txt --steps 300 --checkpoints run\n"
      "  tilewright train --data book.txt --steps 600 --checkpoints run --resume run\n"
      "  tilewright launch -n 2 -- tilewright train --data tokens.bin --model small --strategy zero1 --batch 16\n"
      "  tilewright sample --checkpoint run --prompt 'Once upon a time'\n");
  command->callback([options, &exitCode] {
    Expected<int> result = trainOnce(*options);
    exitCode = result ? *result : reportError(result.error());
  });
}

} // namespace tilewright::tool
