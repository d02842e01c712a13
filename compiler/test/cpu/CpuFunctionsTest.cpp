// Masks, scores and tables in CPU kernels, against the double-precision reference.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "CpuKernelHarness.h"

#include <cmath>

using namespace tilewright;
using namespace tilewright::test;

namespace {

Table floatTable(std::vector<float> elements, std::vector<int64_t> shape) {
  Expected<Table> table = Table::ofFloats(elements, std::move(shape), "table");
  REQUIRE(table);
  return std::move(*table);
}

} // namespace

TEST_CASE("masks") {
  const char *masks[] = {"k <= q",
                         "k >= q && k - q < 10",
                         "q - k < 40 && k <= q || k < 4",
                         "k // 16 == q // 16",
                         "(q - k) % 3 == 0",
                         "k < 20 || k <= q + sk - sq",
                         "h == 0 && k <= q || h == 1 && k >= q",
                         "(q * 1000003) // 7 % 3 != k % 3", // needs 64-bit positions
                         "k * 0.5 < q + 0.25"};
  uint64_t seed = 20;
  for (const char *mask : masks)
    for (auto [sq, sk] : {std::pair{130, 130}, {70, 150}, {150, 70}}) {
      Problem p = problemOf(sq, sk, 16);
      p.mask = mask;
      checkProblem(p, widest(), seed++);
    }
}

TEST_CASE("masks and scores on narrow vectors") {
  for (const Target &target : runnableTargets()) {
    Problem p = problemOf(60, 90, 16);
    p.mask = "(q - k) % 3 == 0 || k // 16 == q // 16";
    p.score = "s - 0.1 * abs(q - k) + log(1 + exp(s))";
    checkProblem(p, target, 31);
  }
}

TEST_CASE("windows and causal, more queries than keys") {
  Problem p = problemOf(129, 33, 16);
  p.window = {32, 64};
  checkProblem(p, widest(), 41);
  p.window = {};
  p.causal = true;
  CpuRun run(p, 42);
  run.run(widest());
  Verification result = run.verify();
  CHECK(result.ok);
  CHECK(result.emptyRows == 96 * 2 * 2);
  for (int64_t r = 0; r < 96; ++r) { // the first 96 rows see nothing
    CHECK(run.o.at(0, 0, r, 0) == 0);
    CHECK(run.lse[r] == -std::numeric_limits<float>::infinity());
    CHECK(run.dQ.at(0, 0, r, 3) == 0);
  }
}

TEST_CASE("scores and their gradients") {
  const char *scores[] = {"5 * tanh(s / 5)",          "s - 0.05 * abs(q - k)", "where(k <= q, s, s * 0.5)",
                          "max(s, -1) + min(s, 1)",   "s * s - exp(-s * s)",   "log(abs(s) + 1) * (h + 1)",
                          "where(k < 10, -3.4e38, s)"};
  uint64_t seed = 50;
  for (const char *score : scores) {
    Problem p = problemOf(70, 90, 24);
    p.score = score;
    checkProblem(p, widest(), seed++);
    p.causal = true;
    checkProblem(p, widest(), seed++);
  }
}

TEST_CASE("a row of the most negative float is not hidden") {
  for (const char *score : {"-3.4e38", "where(q % 3 == 0, -3.4e38, s)"}) {
    Problem p = problemOf(40, 50, 16);
    p.score = score;
    CpuRun run(p, 71);
    run.run(widest());
    Verification result = run.verify();
    for (const auto &figures : {result.o, result.lse, result.dQ, result.dK, result.dV})
      CHECK(figures->ok);
    CHECK(run.lse[0] == doctest::Approx(-3.4e38).epsilon(1e-6));
    for (int64_t r = 0; r < 40; r += 3)
      for (int64_t d = 0; d < 16; ++d)
        CHECK(run.dQ.at(0, 0, r, d) == 0);
  }
}

TEST_CASE("tables: documents, positions, slopes, per batch entry") {
  const int64_t sq = 100, sk = 120;
  std::vector<int32_t> docQ(sq), docK(sk);
  for (int64_t i = 0; i < sq; ++i)
    docQ[i] = static_cast<int32_t>(i / 37);
  for (int64_t i = 0; i < sk; ++i)
    docK[i] = static_cast<int32_t>(i / 41);
  SUBCASE("documents") {
    Problem p = problemOf(sq, sk, 16);
    p.mask = "qd[q] == kd[k] && k <= q + 3";
    p.tables = {{"kd", false, {TableAxis::K}}, {"qd", false, {TableAxis::Q}}};
    for (const Target &target : runnableTargets()) {
      std::vector<Table> tables;
      tables.push_back(intTable(docK, {sk}));
      tables.push_back(intTable(docQ, {sq}));
      checkProblem(p, target, 81, std::move(tables));
    }
  }
  SUBCASE("slopes per head, lengths and bias per batch entry") {
    Problem p = problemOf(sq, sk, 16);
    p.score = "s - slope[h] * abs(q - k) + bias[b, k]";
    p.mask = "k < n[b]";
    p.tables = {
        {"bias", true, {TableAxis::B, TableAxis::K}}, {"n", false, {TableAxis::B}}, {"slope", true, {TableAxis::H}}};
    std::vector<float> bias(2 * sk);
    for (size_t i = 0; i < bias.size(); ++i)
      bias[i] = std::sin(static_cast<float>(i));
    std::vector<Table> tables;
    tables.push_back(floatTable(bias, {2, sk}));
    tables.push_back(intTable({57, 120}, {2}));
    tables.push_back(floatTable({0.1f, 0.02f}, {2}));
    checkProblem(p, widest(), 82, std::move(tables));
  }
  SUBCASE("table of the queries, two axes, own and walked") {
    Problem p = problemOf(sq, sk, 16);
    p.mask = "k <= last[b, q]";
    p.tables = {{"last", false, {TableAxis::B, TableAxis::Q}}};
    std::vector<int32_t> last(2 * sq);
    for (int64_t i = 0; i < 2 * sq; ++i)
      last[i] = static_cast<int32_t>((i * 7) % sk) - 5; // some rows see nothing
    std::vector<Table> tables;
    tables.push_back(intTable(last, {2, sq}));
    checkProblem(p, widest(), 83, std::move(tables));
  }
}
