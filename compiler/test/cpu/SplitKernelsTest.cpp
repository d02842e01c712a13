// Forward kernels whose keys are cut into parts, and the merge of their states: against the double-precision reference,
// and against the same kernel in one part.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "CpuKernelHarness.h"

#include <cmath>

using namespace tilewright;
using namespace tilewright::test;

namespace {

Problem decode(int64_t sq, int64_t sk, int64_t dim = 16, DType dtype = DType::F32) {
  Problem p;
  p.batch = 2;
  p.headsQ = 4;
  p.headsKV = 2;
  p.seqQ = sq;
  p.seqKV = sk;
  p.dimQK = dim;
  p.dimV = dim + 4;
  p.dtype = dtype;
  p.layout = Layout::BSHD;
  return p;
}

std::string parts(int count) { return "tile_q=16,tile_kv=16,forward.split_kv=" + std::to_string(count); }

void checkSplit(const Problem &problem, int count, uint64_t seed, DataPattern pattern = DataPattern::Normal) {
  checkProblem(problem, widest(), seed, {}, parts(count), pattern);
}

double largestDifference(const CpuRun &a, const CpuRun &b) {
  const Problem &p = a.problem;
  double largest = 0;
  for (int64_t n = 0; n < p.batch; ++n)
    for (int64_t h = 0; h < p.headsQ; ++h)
      for (int64_t r = 0; r < p.seqQ; ++r)
        for (int64_t d = 0; d < p.dimV; ++d)
          largest = std::max(largest, std::abs(a.o.at(n, h, r, d) - b.o.at(n, h, r, d)));
  return largest;
}

/// `problem` in one part and in `count`, on the same tensors.
std::pair<CpuRun, CpuRun> bothWays(const Problem &problem, int count, uint64_t seed) {
  CpuRun whole(problem, seed), split(problem, seed);
  whole.run(widest(), parts(1));
  split.run(widest(), parts(count));
  return {std::move(whole), std::move(split)};
}

} // namespace

TEST_CASE("lengths that parts do not divide, and fewer tiles than parts") {
  uint64_t seed = 1;
  for (auto [sq, sk] : {std::pair{1, 1}, {1, 15}, {1, 16}, {1, 17}, {1, 200}, {3, 129}, {17, 100}, {40, 70}})
    for (int count : {2, 3, 7, 16})
      checkSplit(decode(sq, sk), count, seed++);
}

TEST_CASE("every level, every type, panels of several vectors") {
  for (const Target &target : runnableTargets())
    for (DType dtype : {DType::F32, DType::F16, DType::BF16})
      for (const char *tile : {"tile_q=16", "tile_q=48", "tile_q=64"}) {
        Problem p = decode(70, 90, 24, dtype);
        p.causal = true;
        p.softcap = 20;
        checkProblem(p, target, 7, {}, std::string(tile) + ",tile_kv=16,forward.split_kv=3");
      }
}

TEST_CASE("masks: parts that see nothing, rows that see nothing in some parts or in all") {
  const char *masks[] = {"k < 20",                                  // all in the first part
                         "k >= sk - 5",                             // all in the last
                         "k < 4 || k >= sk - 4",                    // both ends, classified tile by tile
                         "(q + k) % 3 == 0",                        // classes in every tile
                         "k <= q + sk - sq && k > q + sk - sq - 9", // a narrow band
                         "q % 2 == 0 && k < 50",                    // every other row sees nothing
                         "h == 1 || k < 30 * b"};                   // differs by head and batch entry
  uint64_t seed = 40;
  for (const char *mask : masks)
    for (auto [sq, sk] : {std::pair{1, 130}, {5, 200}, {33, 90}}) {
      Problem p = decode(sq, sk);
      p.mask = mask;
      checkSplit(p, 4, seed++);
    }
}

TEST_CASE("more queries than keys under causal: empty rows stay empty") {
  Problem p = decode(60, 40);
  p.causal = true;
  CpuRun run(p, 60);
  run.run(widest(), parts(3));
  Verification result = run.verify();
  CHECK_MESSAGE(result.ok, result.failure());
  for (int64_t r = 0; r < 20; ++r) {
    CHECK(run.o.at(1, 3, r, 0) == 0);
    CHECK(run.lse[r] == -std::numeric_limits<float>::infinity());
    CHECK(run.lseRest[r] == 0);
  }
}

TEST_CASE("no keys at all") {
  CpuRun run(decode(5, 0), 61);
  run.run(widest(), parts(4));
  for (int64_t r = 0; r < 5; ++r) {
    CHECK(run.o.at(0, 0, r, 7) == 0);
    CHECK(run.lse[r] == -std::numeric_limits<float>::infinity());
  }
}

TEST_CASE("hostile data: saturated, equal and very low scores, and the floor of fp32") {
  uint64_t seed = 70;
  for (DataPattern pattern :
       {DataPattern::OutlierChannels, DataPattern::StrongFirstToken, DataPattern::AllEqual, DataPattern::HugeNegative})
    for (DType dtype : {DType::F32, DType::F16, DType::BF16})
      checkSplit(decode(9, 300, 64, dtype), 5, seed++, pattern);
  for (const char *score : {"-3.4e38", "where(k < 128, -3.4e38, s)", "where(k % 2 == 0, -3.4e38, s * 100)"}) {
    Problem p = decode(3, 256);
    p.score = score;
    checkSplit(p, 4, seed++);
  }
}

TEST_CASE("gradients take the LSE of a forward in parts") {
  Problem p = decode(20, 150);
  p.direction = Direction::Backward;
  p.causal = true;
  p.score = "s - 0.05 * abs(q - k)";
  checkSplit(p, 4, 80);
  p.score.clear();
  p.scale = 3000; // what rounding LSE left out matters
  checkSplit(p, 4, 81);
}

TEST_CASE("NaN in a seen key reaches its rows through its part, and hidden ones reach nobody") {
  Problem p = decode(6, 160);
  p.mask = "k != 37 && (k < 100 || q >= 3)";
  CpuRun run(p, 90);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t d = 0; d < 16; ++d) {
    run.k.set(0, 0, 37, d, nan);
    run.v.set(0, 0, 37, d, nan);
  }
  run.k.set(1, 1, 120, 0, nan);
  run.v.set(0, 1, 140, 3, nan);
  run.run(widest(), parts(5));
  Verification result = run.verify();
  CHECK_MESSAGE(result.ok, result.failure());
  CHECK(std::isfinite(run.o.at(0, 0, 5, 0)));
  CHECK(std::isfinite(run.o.at(1, 2, 2, 0)));
  CHECK(std::isnan(run.o.at(1, 2, 3, 0)));
}

TEST_CASE("a part that sees everything there is leaves the bits of one part") {
  // One visible tile in three parts: the last part has it, the states of the others are the unit.
  Problem p = decode(4, 160);
  p.mask = "k < 16";
  auto [whole, split] = bothWays(p, 3, 95);
  CHECK(largestDifference(whole, split) == 0);
  CHECK(std::memcmp(whole.lse.data(), split.lse.data(), whole.lse.size() * 4) == 0);
  CHECK(std::memcmp(whole.lseRest.data(), split.lseRest.data(), whole.lse.size() * 4) == 0);
}

TEST_CASE("the number of parts moves results by rounding only") {
  for (int count : {2, 5, 64}) {
    auto [whole, split] = bothWays(decode(3, 1000, 32), count, 96);
    CHECK(largestDifference(whole, split) < 1e-6);
    for (size_t i = 0; i < whole.lse.size(); ++i)
      CHECK(std::abs(whole.lse[i] - split.lse[i]) < 2e-6);
  }
}
