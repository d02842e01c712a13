#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/distributed/transport/GlooTransport.h"
#include "RankProcesses.h"
#include "tilewright/distributed/plan/PlanCost.h"
#include "tilewright/tensor/Half.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace tilewright;
using namespace tilewright::dist;
using Say = std::function<void(const std::string &)>;

namespace {

/// An addend of element i on a rank; sums of them are not exact in fp32, so that their order shows.
float addend(int rank, int64_t i) {
  const uint32_t mixed = (static_cast<uint32_t>(i) + 1) * 2654435761u ^ static_cast<uint32_t>(rank + 1) * 40503u;
  return static_cast<float>(mixed % 20011u) / 7919.0f - 1.2f;
}

float expectedSum(int ranks, int64_t i) {
  float sum = addend(0, i);
  for (int r = 1; r < ranks; ++r)
    sum += addend(r, i);
  return sum;
}

/// A bf16 sum is the rounded fp32 sum of the rounded addends.
uint16_t expectedSum16(int ranks, int64_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r)
    sum += floatFromBFloat16(bfloat16FromFloat(addend(r, i)));
  return bfloat16FromFloat(sum);
}

#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      say(fmt::format("line {}: {} with {} elements", __LINE__, #condition, n));                                       \
      return 1;                                                                                                        \
    }                                                                                                                  \
  } while (false)

int everyCollective(Transport &transport, const Say &say) {
  const int rank = transport.rank(), ranks = transport.worldSize();
  for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{1000}, int64_t{840 * 7}, int64_t{1'680'000}}) {
    std::vector<float> data(static_cast<size_t>(n));
    auto fill = [&] {
      for (int64_t i = 0; i < n; ++i)
        data[static_cast<size_t>(i)] = addend(rank, i);
    };
    auto at = [&](int64_t i) { return data[static_cast<size_t>(i)]; };
    auto run = [&](OpKind kind, int root = 0) {
      const int64_t before = transport.sentBytes();
      Status status = transport.run({kind, data.data(), n, ElementType::F32, root, 0, "test"});
      if (!status) say(status.error().text());
      return status && transport.sentBytes() - before == sentBytes(kind, n, 4, ranks, rank, root);
    };
    fill();
    EXPECT(run(OpKind::AllReduce));
    for (int64_t i = 0; i < n; ++i)
      EXPECT(at(i) == expectedSum(ranks, i));
    fill();
    EXPECT(run(OpKind::ReduceScatter));
    const Chunk own = chunkOf(n, ranks, rank);
    for (int64_t i = own.begin; i < own.begin + own.count; ++i)
      EXPECT(at(i) == expectedSum(ranks, i));
    EXPECT(run(OpKind::AllGather));
    for (int64_t i = 0; i < n; ++i)
      EXPECT(at(i) == expectedSum(ranks, i));
    for (int root = 0; root < ranks; ++root) {
      fill();
      EXPECT(run(OpKind::Broadcast, root));
      for (int64_t i = 0; i < n; ++i)
        EXPECT(at(i) == addend(root, i));
    }
    std::vector<uint16_t> half(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i)
      half[static_cast<size_t>(i)] = bfloat16FromFloat(addend(rank, i));
    EXPECT(transport.run({OpKind::AllReduce, half.data(), n, ElementType::BF16, 0, 0, "half"}));
    for (int64_t i = 0; i < n; ++i)
      EXPECT(half[static_cast<size_t>(i)] == expectedSum16(ranks, i));
    if (ranks == 1) continue;
    fill();
    std::vector<float> received(static_cast<size_t>(n));
    for (int hop = 1; hop < ranks; ++hop) {
      EXPECT(transport.run({OpKind::Send, data.data(), n, ElementType::F32, 0, hop, "send"}));
      EXPECT(transport.run({OpKind::Receive, received.data(), n, ElementType::F32, 0, -hop, "receive"}));
      for (int64_t i = 0; i < n; ++i)
        EXPECT(received[static_cast<size_t>(i)] == addend((rank - hop + ranks) % ranks, i));
    }
  }
  const int64_t n = 0;
  auto texts = transport.exchange(std::string(static_cast<size_t>(rank * 11), static_cast<char>('a' + rank)));
  EXPECT(texts);
  for (int r = 0; r < ranks; ++r)
    EXPECT((*texts)[static_cast<size_t>(r)] == std::string(static_cast<size_t>(r * 11), static_cast<char>('a' + r)));
  return 0;
}

/// Connects, then all-reduces until something happens; says what. Each round is announced by rank 0.
int reduceForEver(const JobEnvironment &job, const Say &say, int64_t elements) {
  auto transport = connectGloo(job);
  if (!transport) {
    say(transport.error().text());
    return 3;
  }
  std::vector<float> data(static_cast<size_t>(elements), 1.0f);
  say("connected\n");
  for (;;) {
    Status status = (*transport)->run({OpKind::AllReduce, data.data(), elements, ElementType::F32, 0, 0, "gradients"});
    if (!status) {
      say(status.error().text());
      return 2;
    }
    std::fill(data.begin(), data.end(), 1.0f);
  }
}

void contains(const std::string &text, std::initializer_list<std::string> parts) {
  for (const std::string &part : parts)
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
}

} // namespace

TEST_CASE("collectives over 1 to 5 processes: values to the bit, bytes as planned") {
  for (int ranks : {1, 2, 3, 4, 5}) {
    CAPTURE(ranks);
    RankProcesses job(ranks, [](const JobEnvironment &environment, const Say &say) {
      auto transport = connectGloo(environment);
      if (!transport) {
        say(transport.error().text());
        return 3;
      }
      return everyCollective(**transport, say);
    });
    for (const RankResult &result : job.wait())
      CHECK_MESSAGE(result.exitCode == 0, result.said);
  }
}

TEST_CASE("a killed rank is an error on all survivors that names it, not a timeout") {
  for (int64_t elements : {int64_t{100}, int64_t{8'000'000}})
    for (int delay : {0, 37, 110}) {
      RankProcesses job(3, [&](const JobEnvironment &e, const Say &say) { return reduceForEver(e, say, elements); });
      for (int rank : {0, 1, 2})
        CHECK(job.hear(rank) == "connected\n");
      usleep(static_cast<useconds_t>(delay) * 1000);
      kill(job.pid(2), SIGKILL);
      for (size_t rank : {size_t{0}, size_t{1}}) {
        const RankResult &result = job.waitFor(rank);
        CHECK(result.exitCode == 2);
        contains(result.said, {"all-reduce gradients (operation ", "rank 2 has died"}); // not: did not respond
      }
    }
}

TEST_CASE("a stopped rank is an error on all survivors after the timeout, and it is the one that is named") {
  for (int64_t elements : {int64_t{100}, int64_t{4'000'000}})
    for (int stopped : {0, 3}) {
      RankProcesses job(
          4, [&](const JobEnvironment &e, const Say &say) { return reduceForEver(e, say, elements); },
          std::chrono::milliseconds(1000));
      for (int rank : {0, 1, 2, 3})
        CHECK(job.hear(rank) == "connected\n");
      usleep(50'000);
      kill(job.pid(stopped), SIGSTOP);
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == stopped) continue;
        const RankResult &result = job.waitFor(static_cast<size_t>(rank));
        CHECK(result.exitCode == 2);
        contains(result.said,
                 {"all-reduce gradients (operation ", fmt::format("rank {} did not respond within 1 s", stopped)});
      }
      kill(job.pid(stopped), SIGKILL);
    }
}

TEST_CASE("a rank that ends early, gives up, or does something else is named with what it did") {
  RankProcesses early(3, [](const JobEnvironment &e, const Say &say) {
    if (e.rank == 1) return connectGloo(e) ? 0 : 3;
    return reduceForEver(e, say, 1000);
  });
  for (size_t rank : {size_t{0}, size_t{2}})
    contains(early.waitFor(rank).said, {"rank 1 has ended its part of the job"});
  CHECK(early.waitFor(1).exitCode == 0);

  RankProcesses aborted(3, [](const JobEnvironment &e, const Say &say) {
    if (e.rank != 1) return reduceForEver(e, say, 1000);
    auto transport = connectGloo(e);
    if (transport) (*transport)->abort("no such file");
    return 0;
  });
  for (size_t rank : {size_t{0}, size_t{2}})
    contains(aborted.waitFor(rank).said, {"rank 1 gave up: no such file"});

  RankProcesses absent(
      2,
      [](const JobEnvironment &e, const Say &say) {
        if (e.rank == 0) return reduceForEver(e, say, 1000);
        auto transport = connectGloo(e);
        usleep(1'500'000);
        return transport ? 0 : 3;
      },
      std::chrono::milliseconds(500));
  contains(absent.waitFor(0).said, {"rank 1 is alive, but did not take part within 0.5 s"});
}

TEST_CASE("a rank that is alive may take longer than the timeout: it writes a checkpoint, or has more data") {
  RankProcesses slow(
      3,
      [](const JobEnvironment &e, const Say &say) {
        auto transport = connectGloo(e);
        if (!transport) return say(transport.error().text()), 3;
        if (e.rank == 1) usleep(2'500'000);
        float x = 1;
        Status status = (*transport)->run({OpKind::AllReduce, &x, 1, ElementType::F32, 0, 0, "gradients"});
        if (!status) return say(status.error().text()), 2;
        status = (*transport)->ping();
        if (!status) return say(status.error().text()), 2;
        auto all = (*transport)->exchange("done");
        return all && x == 3 ? 0 : 1;
      },
      std::chrono::milliseconds(500), [](JobEnvironment &e) { e.hangTimeout = std::chrono::seconds(200); });
  for (const RankResult &result : slow.wait())
    CHECK_MESSAGE(result.exitCode == 0, result.said);
}

TEST_CASE("what a rank sent before it ended arrives") {
  RankProcesses job(2, [](const JobEnvironment &e, const Say &say) {
    auto transport = connectGloo(e);
    if (!transport) return say(transport.error().text()), 3;
    std::vector<float> data(2'000'000, e.rank == 0 ? 7.0f : 0.0f);
    const auto count = static_cast<int64_t>(data.size());
    if (e.rank == 0)
      return (*transport)->run({OpKind::Send, data.data(), count, ElementType::F32, 0, 1, "last words"}) ? 0 : 1;
    usleep(400'000);
    Status status = (*transport)->run({OpKind::Receive, data.data(), count, ElementType::F32, 0, -1, "last words"});
    if (!status) return say(status.error().text()), 2;
    return std::count(data.begin(), data.end(), 7.0f) == count ? 0 : 1;
  });
  for (const RankResult &result : job.wait())
    CHECK_MESSAGE(result.exitCode == 0, result.said);
}

TEST_CASE("rendezvous: wrong token, missing rank, two of one rank, another world size, a port in use") {
  auto said = [](int ranks, std::function<void(JobEnvironment &)> change, std::chrono::milliseconds timeout) {
    RankProcesses job(
        ranks, [](const JobEnvironment &e, const Say &say) { return reduceForEver(e, say, 10); }, timeout,
        [&](JobEnvironment &e) {
          e.joinTimeout = timeout;
          change(e);
        });
    return job.wait();
  };
  const std::chrono::milliseconds limit(3000), enough(20000);
  auto results = said(
      3, [](JobEnvironment &e) { e.token = e.rank == 2 ? "a guess" : e.token; }, limit);
  contains(results[2].said, {"another job token", "TILEWRIGHT_JOB_TOKEN"});
  contains(results[0].said, {"rank 2 did not arrive within 3 s"});
  contains(results[1].said, {"rank 2 did not arrive within 3 s"});
  results = said(
      3, [](JobEnvironment &e) { e.rank = e.rank == 2 ? 1 : e.rank; }, enough);
  contains(results[0].said, {"two processes say that they are rank 1"});
  results = said(
      2, [](JobEnvironment &e) { e.worldSize += e.rank; }, enough);
  for (const RankResult &result : results)
    contains(result.said, {"rank 1 was started for 3 ranks, rank 0 for 2"});

  auto held = openRendezvousPort("127.0.0.1", 0);
  REQUIRE(held);
  JobEnvironment job;
  job.worldSize = 2;
  job.masterPort = held->port;
  job.token = "x";
  auto refused = connectGloo(job);
  REQUIRE_FALSE(refused);
  contains(refused.error().text(), {"127.0.0.1", std::to_string(held->port), "in use"});
  job.rank = 1;
  job.timeout = std::chrono::milliseconds(300);
  refused = connectGloo(job); // the holder says nothing
  REQUIRE_FALSE(refused);
  contains(refused.error().text(), {"something else listens there"});
  close(held->socket);
}
