#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "RankProcesses.h"
#include "TrainingModel.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include <cstdlib>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <map>
#include <thread>

using namespace model;
using Say = std::function<void(const std::string &)>;

namespace {

struct Case {
  Setup setup;
  StrategyOptions options;
  double tolerance = 1e-6;
};

int complain(const Say &say, const Error &error) {
  say(error.text());
  return 3;
}

/// Trains as rank of a job and checks everything against the reference; says the digest of the final parameters.
int train(const JobEnvironment &job, const Say &say, const Case &c, const Reference &reference) {
  auto transport = connectGloo(job);
  if (!transport) return complain(say, transport.error());
  auto device = hostDevice();
  auto engine = Engine::create(parameterList(), c.options, **transport, *device);
  if (!engine) return complain(say, engine.error());
  initialise(**engine, job.rank); // only rank 0's values count
  if (Status s = (*engine)->start(); !s) return complain(say, s.error());
  const int64_t before = (*transport)->sentBytes();
  for (int step = 0; step < c.setup.steps; ++step) {
    auto report = trainStep(**engine, c.setup, job.rank, step);
    if (!report) return complain(say, report.error());
    if (static_cast<int>(report->sums.size()) != c.setup.sums) return say("sums are missing"), 1;
    for (double sum : report->sums)
      if (sum != c.setup.ranks * (c.setup.ranks + 1) / 2) return say(fmt::format("a sum of {}", sum)), 1;
    if (report->tokens != kTokens) return say(fmt::format("{} tokens", report->tokens)), 1;
    if (std::abs(report->norm / reference.norms[static_cast<size_t>(step)] - 1) > c.tolerance)
      return say(fmt::format("norm {} instead of {} in step {}", report->norm,
                             reference.norms[static_cast<size_t>(step)], step)),
             1;
  }
  if (Status s = (*engine)->synchronize(); !s) return complain(say, s.error());
  int64_t planned = 0;
  for (auto &[kind, traffic] : predictTraffic((*engine)->plan(), job.rank))
    planned += traffic.sentBytes;
  if ((*transport)->sentBytes() - before != planned * c.setup.steps)
    return say(fmt::format("sent {} bytes instead of {}", (*transport)->sentBytes() - before, planned * c.setup.steps)),
           1;
  if ((*engine)->steps().allocated() != predictMemory((*engine)->plan(), job.rank))
    return say("memory is not as planned"), 1;
  if (double error = reference.error(**engine); !(error <= c.tolerance)) return say(fmt::format("error {}", error)), 1;
  say(fmt::format("{:016x}", digest(**engine)));
  return 0;
}

/// The digest that all ranks agree on; empty after a failed check.
std::string digestOf(const Case &c) {
  CAPTURE(toString(c.options.strategy));
  CAPTURE(c.setup.ranks);
  CAPTURE(c.options.bucketBytes);
  CAPTURE(c.options.accumulation);
  static std::map<std::tuple<double, int>, Reference> references;
  const auto key = std::tuple(c.setup.maxNorm, c.setup.steps);
  if (!references.contains(key)) references.emplace(key, Reference(c.setup));
  const Reference &reference = references.at(key);
  RankProcesses job(c.setup.ranks,
                    [&](const JobEnvironment &e, const Say &say) { return train(e, say, c, reference); });
  std::string first;
  for (const RankResult &result : job.wait()) {
    CHECK_MESSAGE(result.exitCode == 0, result.said);
    if (first.empty()) first = result.said;
    CHECK(result.said == first);
  }
  return first;
}

Case makeCase(Strategy strategy, int ranks, int64_t cap = 4000, int accumulation = 1) {
  Case c;
  c.setup.ranks = ranks;
  c.setup.accumulation = c.options.accumulation = accumulation;
  c.options.strategy = strategy;
  c.options.bucketBytes = cap;
  return c;
}

} // namespace

TEST_CASE("every strategy at 1 to 5 ranks trains as one process in double does, and all to the same bits") {
  for (int ranks : {1, 2, 3, 4, 5}) {
    std::string bits;
    for (Strategy strategy : allStrategies()) {
      Case c = makeCase(strategy, ranks);
      c.setup.uneven = ranks > 1;
      c.setup.sums = c.options.hostSums = ranks - 1; // beside gradients, and without effect on them
      const std::string digest = digestOf(c);
      if (bits.empty()) bits = digest;
      CHECK(digest == bits);
    }
  }
}

TEST_CASE("bucket caps, accumulation, clipping and more ranks than elements change nothing") {
  const std::string bits = digestOf(makeCase(Strategy::Bucketed, 3));
  for (int64_t cap : {int64_t{1}, int64_t{1} << 10, int64_t{1} << 40})
    for (Strategy strategy : {Strategy::Bucketed, Strategy::Zero1})
      CHECK(digestOf(makeCase(strategy, 3, cap)) == bits);
  digestOf(makeCase(Strategy::Zero1, 7));
  for (Strategy strategy : {Strategy::Naive, Strategy::Zero1}) {
    Case c = makeCase(strategy, 2, 4000, 4);
    digestOf(c);
    c.setup.uneven = true; // the last rank has no data at all, others an incomplete last round
    c.setup.ranks = 3;
    digestOf(c);
  }
  // 1 x 8 = 8 x 1: one rank with eight micro-batches, eight ranks with one, and what lies between.
  for (auto [ranks, accumulation] : {std::pair{1, 8}, {8, 1}, {2, 4}, {4, 2}})
    digestOf(makeCase(Strategy::Zero1, ranks, 4000, accumulation));
  // Active in every step. Norms are added up bucket by bucket, shard by shard, whoever owns them.
  std::string clipped;
  for (Strategy strategy : allStrategies()) {
    Case c = makeCase(strategy, 2);
    c.setup.maxNorm = 0.1;
    const std::string digest = digestOf(c);
    if (clipped.empty()) clipped = digest;
    CHECK(digest == clipped);
  }
  CHECK(clipped != bits);
}

TEST_CASE("bf16 parameters with fp32 master weights; fp32 and bf16 reduction") {
  for (auto [gradients, reduction] : {std::pair{ElementType::F32, ElementType::F32},
                                      {ElementType::F32, ElementType::BF16},
                                      {ElementType::BF16, ElementType::F32},
                                      {ElementType::BF16, ElementType::BF16}}) {
    std::string bits;
    for (Strategy strategy : {Strategy::Flat, Strategy::Bucketed, Strategy::Zero1Broadcast, Strategy::Zero1}) {
      Case c = makeCase(strategy, 3);
      c.options.parameterType = ElementType::BF16;
      c.options.gradientType = gradients;
      c.options.reductionType = reduction;
      c.tolerance = 1.0 / 64; // gradients of parameters that are rounded to 8 bits
      const std::string digest = digestOf(c);
      if (bits.empty()) bits = digest;
      CHECK(digest == bits);
    }
  }
  Case c = makeCase(Strategy::Zero1, 2);
  c.options.reductionType = ElementType::BF16;
  c.tolerance = 1.0 / 128;
  digestOf(c);
}

TEST_CASE("gradients may be reported from many threads, in any order") {
  RankProcesses job(2, [](const JobEnvironment &e, const Say &say) {
    auto transport = connectGloo(e);
    if (!transport) return complain(say, transport.error());
    auto device = hostDevice();
    auto engine = Engine::create(parameterList(), {Strategy::Zero1, 1, 2000}, **transport, *device);
    if (!engine) return complain(say, engine.error());
    if (Status s = (*engine)->start(); !s) return complain(say, s.error());
    for (int step = 0; step < 30; ++step) {
      std::vector<std::thread> threads;
      std::atomic<bool> bad = false;
      for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
          for (int i = 0; i < (*engine)->parameters(); ++i) {
            const int p = (i * 7 + step * 5 + e.rank * 3) % (*engine)->parameters(); // 18 parameters: a permutation
            if (p % 4 != t) continue;
            bad = bad || !(*engine)->waitParameter(p);
            GradientView g = (*engine)->gradient(p);
            std::fill_n(static_cast<float *>(g.data), g.elements, 1.0f);
            bad = bad || !(*engine)->gradReady(p);
          }
        });
      for (std::thread &thread : threads)
        thread.join();
      auto report = (*engine)->finishStep(1, {});
      if (!report) return complain(say, report.error());
      if (bad) return 1;
    }
    if (Status s = (*engine)->synchronize(); !s) return complain(say, s.error());
    say(fmt::format("{:x}", digest(**engine)));
    return 0;
  });
  const auto &results = job.wait();
  for (const RankResult &result : results)
    CHECK_MESSAGE(result.exitCode == 0, result.said);
  CHECK(results[0].said == results[1].said);
}

TEST_CASE("gradients that are not finite: update anyway, skip, or stop") {
  using NonFinite = StepSettings::NonFinite;
  JobEnvironment alone;
  auto transport = connectGloo(alone);
  REQUIRE(transport);
  auto device = hostDevice();
  auto engine = Engine::create(parameterList(), {Strategy::Zero1}, **transport, *device);
  REQUIRE(engine);
  initialise(**engine);
  REQUIRE((*engine)->start());
  auto step = [&](NonFinite policy) {
    GradientView g = (*engine)->gradient(0);
    std::fill_n(static_cast<float *>(g.data), g.elements, std::nanf(""));
    StepSettings s;
    s.nonFinite = policy;
    return (*engine)->finishStep(1, s);
  };
  const uint64_t before = digest(**engine);
  // A gradient that nobody reported is zero, whatever lies there.
  REQUIRE(step(NonFinite::Stop));
  const uint64_t after = digest(**engine);
  CHECK(after != before); // decay
  auto bad = [&](NonFinite policy) {
    REQUIRE((*engine)->gradReady(0));
    return step(policy);
  };
  auto skipped = bad(NonFinite::Skip);
  REQUIRE(skipped);
  CHECK(skipped->skipped);
  CHECK((*engine)->updates() == 1);
  CHECK(digest(**engine) == after);
  auto stopped = bad(NonFinite::Stop);
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().message.find("nan") != std::string::npos);
  CHECK(digest(**engine) == after);
  REQUIRE(bad(NonFinite::Continue));
  CHECK(std::isnan(loadAny((*engine)->parameter(0), 0)));
}

TEST_CASE("misuse is an error: too early, twice, too often") {
  JobEnvironment alone;
  auto transport = connectGloo(alone);
  auto device = hostDevice();
  auto engine = Engine::create(parameterList(), {Strategy::Flat}, **transport, *device);
  REQUIRE(engine);
  CHECK_FALSE((*engine)->gradReady(0));
  CHECK_FALSE((*engine)->finishStep(1, {}));
  REQUIRE((*engine)->start());
  CHECK((*engine)->gradReady(0));
  Status twice = (*engine)->gradReady(0);
  REQUIRE_FALSE(twice);
  CHECK(twice.error().message.find("backward.embedding was reported as done twice in step 1") != std::string::npos);
  CHECK((*engine)->endMicroBatch());
  CHECK_FALSE((*engine)->endMicroBatch());
  CHECK_FALSE((*engine)->finishStep(-1, {}));
  CHECK((*engine)->finishStep(1, {}));
}
