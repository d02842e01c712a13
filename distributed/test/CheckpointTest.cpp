#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/distributed/checkpoint/Checkpoint.h"
#include "RankProcesses.h"
#include "TemporaryFolder.h"
#include "TrainingModel.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/resource.h>

using namespace model;
namespace fs = std::filesystem;
using Say = std::function<void(const std::string &)>;

namespace {

/// An engine with what it stands on, as one rank of a job.
struct Trainer {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<ComputeDevice> device = hostDevice();
  std::unique_ptr<Engine> engine;
  Setup setup;
  int rank = 0;

  static Expected<Trainer> make(const JobEnvironment &job, StrategyOptions options,
                                const ParameterList &list = parameterList()) {
    Trainer trainer;
    trainer.rank = job.rank;
    trainer.setup.ranks = job.worldSize;
    trainer.setup.accumulation = options.accumulation;
    auto transport = connectGloo(job);
    if (!transport) return propagate(transport);
    trainer.transport = std::move(*transport);
    auto engine = Engine::create(list, options, *trainer.transport, *trainer.device);
    if (!engine) return propagate(engine);
    trainer.engine = std::move(*engine);
    return trainer;
  }
  Status start() {
    initialise(*engine);
    return engine->start();
  }
  Status trainTo(int step) {
    while (engine->updates() < step)
      if (auto report = trainStep(*engine, setup, rank, static_cast<int>(engine->updates())); !report)
        return propagate(report);
    return engine->synchronize();
  }
};

using Body = std::function<Status(Trainer &, const Say &)>;

/// How a rank ends that was refused something. Ranks are other processes, whose checks nobody sees: this is their word.
constexpr int kRefused = 1;

/// Runs `body` on every rank, which ends as `expected`; what all of them said, or their error.
std::string runJob(int ranks, const StrategyOptions &options, const Body &body,
                   const ParameterList &list = parameterList(), int expected = 0) {
  RankProcesses job(ranks, [&](const JobEnvironment &environment, const Say &say) {
    auto trainer = Trainer::make(environment, options, list);
    Status status = trainer ? body(*trainer, say) : tl::unexpected<Error>(trainer.error());
    if (!status) say(status.error().text());
    return status ? 0 : kRefused;
  });
  std::string first;
  for (const RankResult &result : job.wait()) {
    CHECK_MESSAGE(result.exitCode == expected, result.said);
    if (first.empty()) first = result.said;
    CHECK(result.said == first);
  }
  return first;
}

Body trainFromStart(int steps) {
  return [=](Trainer &trainer, const Say &say) -> Status {
    if (Status s = trainer.start(); !s) return s;
    if (Status s = trainer.trainTo(steps); !s) return s;
    say(fmt::format("{:x}", digest(*trainer.engine)));
    return {};
  };
}

/// Trains to `steps` from a checkpoint, or from the start without one, and saves there.
Body trainAndSave(const std::string &directory, int steps, bool resume, int keep = 2) {
  return [=](Trainer &trainer, const Say &say) -> Status {
    if (!resume)
      if (Status s = trainer.start(); !s) return s;
    if (resume)
      if (auto loaded = loadCheckpoint(*trainer.engine, directory); !loaded) return propagate(loaded);
    if (Status s = trainer.trainTo(steps); !s) return s;
    auto path = saveCheckpoint(*trainer.engine, {directory, {{"seed", "7"}, {"text", "a \"quoted\" line\n"}}, keep});
    if (!path) return propagate(path);
    say(fmt::format("{:x}", digest(*trainer.engine)));
    return {};
  };
}

std::vector<std::string> contentsOf(const std::string &directory) {
  std::vector<std::string> names;
  for (const auto &entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

StrategyOptions options(Strategy strategy, ElementType type = ElementType::F32) {
  StrategyOptions o;
  o.strategy = strategy;
  o.bucketBytes = 3000;
  o.parameterType = type;
  return o;
}

} // namespace

TEST_CASE("7 + 6 + 7 steps with two resumptions are bitwise the 20 steps of one run") {
  for (auto [strategy, type, ranks] : {std::tuple{Strategy::Zero1, ElementType::F32, 2},
                                       {Strategy::Zero1, ElementType::BF16, 3},
                                       {Strategy::Zero1Broadcast, ElementType::BF16, 2},
                                       {Strategy::Bucketed, ElementType::F32, 3},
                                       {Strategy::Flat, ElementType::F32, 1}}) {
    CAPTURE(toString(strategy));
    TemporaryFolder folder;
    const StrategyOptions o = options(strategy, type);
    const std::string whole = runJob(ranks, o, trainFromStart(20));
    runJob(ranks, o, trainAndSave(folder.path, 7, false));
    runJob(ranks, o, trainAndSave(folder.path, 13, true));
    CHECK(runJob(ranks, o, trainAndSave(folder.path, 20, true)) == whole);
    auto summary = inspectCheckpoint(folder.path, true);
    REQUIRE_MESSAGE(summary, summary.error().text());
    CHECK(summary->step == 20);
    CHECK(summary->worldSize == ranks);
    CHECK(summary->strategy == std::string(toString(strategy)));
    CHECK((summary->parameterType == type));
    CHECK(summary->notes.at("text") == "a \"quoted\" line\n");
    CHECK(summary->parameters.size() == parameterList().size());
    CHECK(contentsOf(folder.path) == std::vector<std::string>{"newest", "step-00000013", "step-00000020"});
  }
}

TEST_CASE("any world size, any strategy: saved by four ranks, loaded by one, two, three, and back to four") {
  TemporaryFolder folder;
  Setup setup;
  setup.steps = 12;
  const Reference reference(setup);
  const std::string saved = runJob(4, options(Strategy::Zero1), trainAndSave(folder.path + "/a", 6, false));
  for (auto [ranks, strategy] : {std::pair{1, Strategy::Naive},
                                 {2, Strategy::Bucketed},
                                 {3, Strategy::Zero1},
                                 {3, Strategy::Zero1Broadcast},
                                 {4, Strategy::Bucketed}}) {
    CAPTURE(ranks);
    StrategyOptions o = options(strategy);
    o.bucketBytes = 1000 * ranks; // another layout of the arena, too
    const std::string there = folder.path + fmt::format("/{}-{}", toString(strategy), ranks);
    CHECK(runJob(ranks, o, [&](Trainer &trainer, const Say &say) -> Status {
            if (auto loaded = loadCheckpoint(*trainer.engine, folder.path + "/a"); !loaded) return propagate(loaded);
            say(fmt::format("{:x}", digest(*trainer.engine)));
            auto path = saveCheckpoint(*trainer.engine, {there, {}, 0});
            return path.map([](const std::string &) {});
          }) == saved);
    // On from there, and back to the first world and strategy: the state has come along as well.
    for (const std::string &from : {folder.path + "/a", there})
      CHECK(runJob(from == there ? 4 : ranks, from == there ? options(Strategy::Zero1) : o,
                   [&](Trainer &trainer, const Say &say) -> Status {
                     if (auto loaded = loadCheckpoint(*trainer.engine, from); !loaded) return propagate(loaded);
                     if (Status s = trainer.trainTo(setup.steps); !s) return s;
                     const double error = reference.error(*trainer.engine);
                     say(error <= 1e-6 ? "right" : fmt::format("off by {}", error));
                     return {};
                   }) == "right");
  }
}

TEST_CASE("fp32 and bf16 with master weights load each other's checkpoints") {
  TemporaryFolder folder;
  auto trainOn = [&](const std::string &from, ElementType type) {
    return runJob(2, options(Strategy::Zero1, type), [&](Trainer &trainer, const Say &say) -> Status {
      auto loaded = loadCheckpoint(*trainer.engine, from);
      if (!loaded) return propagate(loaded);
      const uint64_t before = digest(*trainer.engine);
      if (Status s = trainer.trainTo(9); !s) return s;
      auto path = saveCheckpoint(*trainer.engine, {folder.path + "/then", {}, 0});
      say(fmt::format("{:x}", before));
      return path.map([](const std::string &) {});
    });
  };
  const std::string wide = runJob(2, options(Strategy::Zero1), trainAndSave(folder.path + "/wide", 6, false));
  const std::string narrow =
      runJob(2, options(Strategy::Zero1, ElementType::BF16), trainAndSave(folder.path + "/narrow", 6, false));
  CHECK(trainOn(folder.path + "/narrow", ElementType::BF16) == narrow);
  CHECK(trainOn(folder.path + "/wide", ElementType::F32) == wide);
  trainOn(folder.path + "/wide", ElementType::BF16);
  trainOn(folder.path + "/narrow", ElementType::F32);
  // Weights that went through bf16 parameters and back are still the fp32 weights: the master's, not the rounded ones.
  runJob(1, options(Strategy::Flat, ElementType::BF16), [&](Trainer &trainer, const Say &) -> Status {
    auto loaded = loadCheckpoint(*trainer.engine, folder.path + "/wide");
    if (!loaded) return propagate(loaded);
    return saveCheckpoint(*trainer.engine, {folder.path + "/through", {}, 0}).map([](const std::string &) {});
  });
  CHECK(runJob(1, options(Strategy::Flat), [&](Trainer &trainer, const Say &say) -> Status {
          auto loaded = loadCheckpoint(*trainer.engine, folder.path + "/through");
          if (!loaded) return propagate(loaded);
          say(fmt::format("{:x}", digest(*trainer.engine)));
          return {};
        }) == wide);
}

TEST_CASE("killed at any moment of saving, the checkpoint before or the new one loads") {
  TemporaryFolder folder;
  const StrategyOptions o = options(Strategy::Zero1);
  runJob(2, o, trainAndSave(folder.path, 1, false));
  int64_t last = 1;
  for (int round = 0; round < 24; ++round) {
    CAPTURE(round);
    RankProcesses job(2, [&](const JobEnvironment &environment, const Say &say) {
      auto trainer = Trainer::make(environment, o);
      if (!trainer || !loadCheckpoint(*trainer->engine, folder.path)) return 1;
      say("loaded\n");
      while (true) {
        Status status = trainer->trainTo(static_cast<int>(trainer->engine->updates()) + 1);
        if (status) status = saveCheckpoint(*trainer->engine, {folder.path, {}, 1}).map([](const std::string &) {});
        if (status) {
          say("saved\n");
          continue;
        }
        say(status.error().text());
        return 2;
      }
    });
    const int victim = round % 2;
    // Some rounds strike in the first save, others, on however slow a machine, when one is made.
    std::string heard;
    while (heard.find(round % 3 ? "loaded" : "saved") == std::string::npos) {
      const std::string more = job.hear(victim);
      REQUIRE_FALSE(more.empty());
      heard += more;
    }
    usleep(static_cast<useconds_t>(1000 + round * 1700));
    kill(job.pid(victim), SIGKILL);
    const RankResult &survivor = job.waitFor(static_cast<size_t>(1 - victim));
    CHECK(survivor.exitCode == 2);
    CHECK_MESSAGE(survivor.said.find(fmt::format("rank {} has", victim)) != std::string::npos, survivor.said);
    job.wait();
    auto summary = inspectCheckpoint(folder.path, true);
    REQUIRE_MESSAGE(summary, summary.error().text());
    CHECK(summary->step >= last);
    last = summary->step;
  }
  CHECK(last > 5); // some saves did come to their end
  runJob(2, o, trainAndSave(folder.path, static_cast<int>(last) + 1, true, 1));
  CHECK(contentsOf(folder.path) == std::vector<std::string>{"newest", fmt::format("step-{:08}", last + 1)});
}

TEST_CASE("a disk that is full on one rank is an error on all, and the checkpoint before stays") {
  TemporaryFolder folder;
  const StrategyOptions o = options(Strategy::Zero1);
  runJob(3, o, trainAndSave(folder.path, 3, false));
  const std::string said = runJob(3, o, [&](Trainer &trainer, const Say &say) -> Status {
    if (auto loaded = loadCheckpoint(*trainer.engine, folder.path); !loaded) return propagate(loaded);
    if (Status s = trainer.trainTo(4); !s) return s;
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    const rlimit small{trainer.rank == 1 ? 10000 : before.rlim_cur, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    auto path = saveCheckpoint(*trainer.engine, {folder.path, {}, 2});
    say(path ? "saved" : path.error().text());
    setrlimit(RLIMIT_FSIZE, &before);
    if (Status s = trainer.trainTo(6); !s) return s; // the engine goes on
    path = saveCheckpoint(*trainer.engine, {folder.path, {}, 2});
    return path.map([](const std::string &) {});
  });
  CHECK_MESSAGE(said.find("rank 1: ") != std::string::npos, said);
  CHECK_MESSAGE(said.find("optimizer-1-of-3.safetensors: cannot be written: File too large") != std::string::npos,
                said);
  CHECK(contentsOf(folder.path) == std::vector<std::string>{"newest", "step-00000003", "step-00000006"});
}

TEST_CASE(
    "a step that is saved again replaces itself; a return to an earlier step is the newest, and deletes nothing") {
  TemporaryFolder folder;
  const StrategyOptions o = options(Strategy::Bucketed);
  runJob(1, o, trainAndSave(folder.path, 2, false, 0));
  runJob(1, o, trainAndSave(folder.path, 2, true, 3));
  CHECK(contentsOf(folder.path) == std::vector<std::string>{"newest", "step-00000002.2"});
  runJob(1, o, trainAndSave(folder.path, 8, true, 3));
  runJob(1, o, [&](Trainer &trainer, const Say &) -> Status {
    auto loaded = loadCheckpoint(*trainer.engine, folder.path + "/step-00000002.2");
    if (!loaded) return propagate(loaded);
    if (Status s = trainer.trainTo(3); !s) return s;
    return saveCheckpoint(*trainer.engine, {folder.path, {}, 1}).map([](const std::string &) {});
  });
  CHECK(contentsOf(folder.path) == std::vector<std::string>{"newest", "step-00000003", "step-00000008"});
  CHECK(*newestCheckpoint(folder.path) == folder.path + "/step-00000003");
  CHECK(newestCheckpoint(folder.path + "/none")->empty());
}

TEST_CASE("another model is refused by name, and so is a path without a checkpoint") {
  TemporaryFolder folder;
  const StrategyOptions o = options(Strategy::Zero1);
  runJob(2, o, trainAndSave(folder.path, 1, false));
  auto said = [&](std::function<void(ParameterList &)> change, const std::string &path) {
    ParameterList list = parameterList();
    change(list);
    return runJob(
        2, o,
        [&](Trainer &trainer, const Say &) -> Status {
          return loadCheckpoint(*trainer.engine, path).map([](const CheckpointSummary &) {});
        },
        list, kRefused);
  };
  auto holds = [](const std::string &text, std::initializer_list<const char *> parts) {
    for (const char *part : parts)
      CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  holds(said(
            [](ParameterList &l) {
              l[1].shape = {17, 13};
            },
            folder.path),
        {"model.safetensors: weight.shape", "(17, 13)", "(13, 17)"});
  holds(said([](ParameterList &l) { l[1].name = "other"; }, folder.path),
        {"model.safetensors: other: the model has this parameter, the file does not"});
  holds(said([](ParameterList &l) { l.erase(l.begin() + 1); }, folder.path),
        {"model.safetensors: weight: the model has no such parameter"});
  holds(said([](ParameterList &) {}, folder.path + "/elsewhere"), {"elsewhere: no such folder"});
  fs::create_directory(folder.path + "/empty");
  holds(said([](ParameterList &) {}, folder.path + "/empty"), {"there is no checkpoint.json in it"});
}
