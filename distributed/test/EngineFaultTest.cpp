#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "RankProcesses.h"
#include "TrainingModel.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace model;
using Say = std::function<void(const std::string &)>;

namespace {

/// The moments of a step at which a rank can get lost.
enum class Moment { Setup, Forward, Backward, BeforeFinish, AfterFinish };

/// Trains until an error comes; at `moment` of step 2 the victim announces itself and waits to be struck.
int trainUntilStruck(const JobEnvironment &job, const Say &say, Strategy strategy, int victim, Moment moment) {
  auto strikeHere = [&](Moment now, int64_t step) {
    if (job.rank != victim || now != moment || (step != 2 && now != Moment::Setup)) return;
    say("here\n");
    pause();
  };
  auto transport = connectGloo(job);
  if (!transport) return say(transport.error().text()), 3;
  strikeHere(Moment::Setup, 0);
  auto device = hostDevice();
  auto train = [&]() -> Status {
    auto engine = Engine::create(parameterList(), {strategy, 1, 2000}, **transport, *device);
    if (!engine) return propagate(engine);
    if (Status s = (*engine)->start(); !s) return s;
    for (int64_t step = 1;; ++step) {
      for (int i = 0; i < (*engine)->parameters(); ++i) {
        if (Status s = (*engine)->waitParameter(i); !s) return s;
        if (i == 3) strikeHere(Moment::Forward, step);
      }
      for (int i = (*engine)->parameters() - 1; i >= 0; --i) {
        if (Status s = (*engine)->gradReady(i); !s) return s;
        if (i == 10) strikeHere(Moment::Backward, step);
      }
      strikeHere(Moment::BeforeFinish, step);
      if (auto report = (*engine)->finishStep(1, {}); !report) return propagate(report);
      strikeHere(Moment::AfterFinish, step);
    }
  };
  Status status = train();
  say(status.error().text());
  return 2;
}

void strike(Strategy strategy, int signal, Moment moment) {
  CAPTURE(toString(strategy));
  CAPTURE(signal);
  CAPTURE(static_cast<int>(moment));
  constexpr int kVictim = 1;
  RankProcesses job(
      3, [&](const JobEnvironment &e, const Say &say) { return trainUntilStruck(e, say, strategy, kVictim, moment); },
      signal == SIGSTOP ? std::chrono::milliseconds(700) : std::chrono::milliseconds(20000));
  REQUIRE(job.hear(kVictim) == "here\n");
  kill(job.pid(kVictim), signal);
  for (size_t rank : {size_t{0}, size_t{2}}) {
    const RankResult &result = job.waitFor(rank);
    CHECK(result.exitCode == 2);
    CHECK_MESSAGE(result.said.find(signal == SIGKILL ? "rank 1 has died" : "rank 1 did not respond") !=
                      std::string::npos,
                  result.said);
  }
  kill(job.pid(kVictim), SIGKILL);
}

} // namespace

TEST_CASE("a rank killed or stopped at any moment of the step is an error on every survivor that names it") {
  for (Strategy strategy : {Strategy::Bucketed, Strategy::Zero1})
    for (int signal : {SIGKILL, SIGSTOP})
      for (Moment moment :
           {Moment::Setup, Moment::Forward, Moment::Backward, Moment::BeforeFinish, Moment::AfterFinish})
        strike(strategy, signal, moment);
}

TEST_CASE("struck in the middle of whatever a step is doing: sums, updates, gathers") {
  // Large enough that communication is where a step spends its time.
  const ParameterList list = {{"a", {700, 1000}, 0.1}, {"b", {300, 1000}, 0}, {"c", {1000}, 0}};
  for (Strategy strategy : {Strategy::Bucketed, Strategy::Zero1, Strategy::Zero1Broadcast})
    for (int signal : {SIGKILL, SIGSTOP})
      for (int delay : {0, 3, 7}) {
        CAPTURE(toString(strategy));
        CAPTURE(signal);
        CAPTURE(delay);
        RankProcesses job(
            3,
            [&](const JobEnvironment &environment, const Say &say) {
              auto transport = connectGloo(environment);
              if (!transport) return say(transport.error().text()), 3;
              auto device = hostDevice();
              auto engine = Engine::create(list, {strategy, 1, 1 << 20}, **transport, *device);
              Status status = engine ? (*engine)->start() : tl::unexpected<Error>(engine.error());
              for (int step = 1; status; ++step) {
                for (int i = 2; i >= 0 && status; --i)
                  status = (*engine)->gradReady(i);
                if (auto report = (*engine)->finishStep(1, {}); status && !report) status = propagate(report);
                if (step == 2 && environment.rank == 1) say("here\n");
              }
              say(status.error().text());
              return 2;
            },
            signal == SIGSTOP ? std::chrono::milliseconds(500) : std::chrono::milliseconds(20000));
        REQUIRE(job.hear(1) == "here\n");
        usleep(static_cast<useconds_t>(delay * 1000));
        kill(job.pid(1), signal);
        for (size_t rank : {size_t{0}, size_t{2}}) {
          const RankResult &result = job.waitFor(rank);
          CHECK(result.exitCode == 2);
          CHECK_MESSAGE(result.said.find(signal == SIGKILL ? "rank 1 has" : "rank 1 did not respond") !=
                            std::string::npos,
                        result.said);
        }
        kill(job.pid(1), SIGKILL);
      }
}

TEST_CASE("a rank of another version is refused by all, with both versions") {
  RankProcesses job(2, [](const JobEnvironment &environment, const Say &say) {
    auto transport = connectGloo(environment);
    if (!transport) return say(transport.error().text()), 3;
    auto device = hostDevice();
    if (environment.rank == 0) {
      auto engine = Engine::create(parameterList(), {Strategy::Zero1}, **transport, *device);
      if (engine) return 0;
      say(engine.error().text());
      return 2;
    }
    // What an engine of version 0.0.1 with the same plan tells.
    auto plan = buildPlan(parameterList(), {Strategy::Zero1, 2});
    auto hashes = (*transport)->exchange("0.0.1 " + plan->hash());
    auto texts = (*transport)->exchange("");
    if (!hashes || !texts) return 3;
    (void)(*transport)->exchange(describeDifference((*texts)[0], "version=0.0.1\n" + plan->canonicalText()));
    return 0;
  });
  const RankResult &result = job.wait()[0];
  CHECK(result.exitCode == 2);
  CHECK_MESSAGE(result.said.find("rank 1 has another plan than rank 0: line 1: 'version=") != std::string::npos,
                result.said);
  CHECK_MESSAGE(result.said.find("against 'version=0.0.1'") != std::string::npos, result.said);
}

TEST_CASE("a rank with another model or other options is refused by all, with the difference") {
  auto said = [](std::function<void(int rank, ParameterList &, StrategyOptions &)> change) {
    RankProcesses job(3, [&](const JobEnvironment &e, const Say &say) {
      auto transport = connectGloo(e);
      if (!transport) return say(transport.error().text()), 3;
      ParameterList list = parameterList();
      StrategyOptions options{Strategy::Zero1};
      change(e.rank, list, options);
      auto device = hostDevice();
      auto engine = Engine::create(list, options, **transport, *device);
      if (engine) return 0;
      say(engine.error().text());
      return 2;
    });
    return job.wait();
  };
  auto refused = [&](auto change, std::initializer_list<std::string> parts) {
    for (const RankResult &result : said(change)) {
      CHECK(result.exitCode == 2);
      for (const std::string &part : parts)
        CHECK_MESSAGE(result.said.find(part) != std::string::npos, result.said);
    }
  };
  refused(
      [](int rank, ParameterList &list, StrategyOptions &) {
        if (rank == 2) list[1].shape = {17, 13};
      },
      {"rank 2 has another plan than rank 0", "parameter weight (13, 17)", "parameter weight (17, 13)"});
  refused(
      [](int rank, ParameterList &, StrategyOptions &o) {
        if (rank == 1) o.strategy = Strategy::Bucketed;
      },
      {"rank 1 has another plan than rank 0", "strategy=zero1", "strategy=bucketed"});
  // One that cannot even build its plan gives up for all.
  auto results = said([](int rank, ParameterList &list, StrategyOptions &) {
    if (rank == 1) list.push_back(list[0]);
  });
  for (size_t rank : {size_t{0}, size_t{2}})
    CHECK_MESSAGE(results[rank].said.find("rank 1 gave up: two parameters are called 'embedding'") != std::string::npos,
                  results[rank].said);
}

TEST_CASE("an engine closed in the middle of a step tells the others") {
  RankProcesses job(2, [](const JobEnvironment &e, const Say &say) {
    auto transport = connectGloo(e);
    if (!transport) return say(transport.error().text()), 3;
    auto device = hostDevice();
    auto engine = Engine::create(parameterList(), {Strategy::Zero1}, **transport, *device);
    if (!engine || !(*engine)->start()) return 3;
    if (Status s = (*engine)->gradReady(0); !s) return 3;
    if (e.rank == 1) return 0;
    auto report = (*engine)->finishStep(1, {});
    if (report) return 1;
    say(report.error().text());
    return 2;
  });
  CHECK(job.waitFor(1).exitCode == 0);
  const RankResult &other = job.waitFor(0);
  CHECK(other.exitCode == 2);
  CHECK_MESSAGE(other.said.find("rank 1 gave up: its engine was closed in the middle of a step") != std::string::npos,
                other.said);
}
