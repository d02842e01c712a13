#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "BenchCase.h"
#include "MeasuredRatios.h"
#include "tilewright/expr/Evaluator.h"
#include "tilewright/expr/Parser.h"
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::bench;

namespace {

/// Pair by pair, by the evaluator of masks.
double visiblePairs(const Problem &problem) {
  const std::string text = problem.fullMask();
  if (text.empty()) return static_cast<double>(problem.seqQ * problem.seqKV);
  auto mask = expr::parseMask(text, {});
  REQUIRE(mask.has_value());
  double pairs = 0;
  expr::Point point;
  point.sq = problem.seqQ;
  point.sk = problem.seqKV;
  for (point.q = 0; point.q < point.sq; ++point.q)
    for (point.k = 0; point.k < point.sk; ++point.k)
      pairs += expr::evaluateBool(**mask, point, {});
  return pairs;
}

BenchCase only(const GridOptions &options) {
  auto cases = benchCases(options);
  REQUIRE(cases.has_value());
  REQUIRE(cases->size() == 1);
  return cases->front();
}

std::string refusal(const GridOptions &options) {
  auto cases = benchCases(options);
  REQUIRE_FALSE(cases.has_value());
  return cases.error().message;
}

} // namespace

TEST_CASE("the default grid is the forward table") {
  auto cases = benchCases({});
  REQUIRE(cases.has_value());
  CHECK(cases->size() == 36);
  for (const BenchCase &c : *cases) {
    CAPTURE(c.name);
    CHECK(c.problem.batch * c.problem.seqQ == 16384);
    CHECK(c.problem.headsQ * c.problem.dimQK == 2048);
    CHECK((c.problem.dtype == DType::BF16));
    CHECK((c.problem.layout == Layout::BSHD));
    CHECK(fa3OverCudnn(c).has_value());
  }
  CHECK(cases->front().name == "d64 none 512");
  CHECK(cases->back().name == "d256 causal 16384");
}

TEST_CASE("FLOPs follow the table's protocol") {
  GridOptions options{.dims = "128", .seqs = "4096", .masks = "none"};
  const double all = 4.0 * 4 * 16 * 4096 * 4096 * 128;
  CHECK(only(options).flops() == all);
  options.masks = "causal";
  CHECK(only(options).flops() == all / 2);
  options.backward = true;
  CHECK(only(options).flops() == all / 2 * 2.5);
  options = {.dims = "192:128", .seqs = "8192", .masks = "none", .heads = "128"};
  CHECK(only(options).flops() == 4.0 * 2 * 128 * 8192 * 8192 * 160);
  // 1 ms for 1e12 operations is 1000 TFLOP/s.
  CHECK(only(options).rateOf(1) == doctest::Approx(only(options).flops() * 1e-9));
}

TEST_CASE("pairs of windows and unequal lengths are counted exactly") {
  for (int64_t seqQ : {1, 7, 64, 100})
    for (int64_t seqKV : {1, 50, 64, 100, 131})
      for (int64_t left : {-1, 0, 3, 63, 200})
        for (int64_t right : {-1, 0, 5})
          for (bool causal : {false, true}) {
            Problem problem;
            problem.seqQ = seqQ;
            problem.seqKV = seqKV;
            problem.window = {left, right};
            problem.causal = causal;
            CAPTURE(seqQ);
            CAPTURE(seqKV);
            CAPTURE(left);
            CAPTURE(right);
            CAPTURE(causal);
            const bool halved = causal && left < 0 && right <= 0 && seqQ == seqKV;
            const double expected = halved ? static_cast<double>(seqQ * seqKV) / 2 : visiblePairs(problem);
            CHECK(countedPairs(problem) == expected);
          }
}

TEST_CASE("a window of N sees N keys") {
  const BenchCase c = only({.dims = "64", .seqs = "1024", .masks = "window:128", .heads = "64:8"});
  CHECK(c.problem.causal);
  CHECK(c.problem.window.left == 127);
  CHECK(c.problem.headsKV == 8);
  CHECK(countedPairs(c.problem) == 128.0 * 129 / 2 + (1024.0 - 128) * 128);
}

TEST_CASE("named cases") {
  auto cases = benchCases({.cases = "hopper"});
  REQUIRE(cases.has_value());
  CHECK(cases->size() == 9);
  const BenchCase &decode = cases->back();
  CHECK(decode.name == "decode b64 kv 8192");
  CHECK((decode.rate == Rate::Bytes));
  CHECK(decode.kvBytes() == 64.0 * 8192 * 8 * 256 * 2);
  CHECK(decode.rateOf(1) == doctest::Approx(decode.kvBytes() * 1e-6));
  for (const BenchCase &c : *cases) {
    CHECK(c.problem.validate().has_value());
    CHECK_FALSE(fa3OverCudnn(c).has_value());
  }
  auto both = benchCases({.cases = "table,hopper"});
  REQUIRE(both.has_value());
  CHECK(both->size() == 45);
  auto backward = benchCases({.cases = "hopper", .backward = true});
  REQUIRE(backward.has_value());
  CHECK(backward->size() == 6); // decode has no gradients
}

TEST_CASE("ratios of FA3 are the measured ones") {
  GridOptions options{.dims = "128", .seqs = "8192", .masks = "causal"};
  CHECK(fa3OverCudnn(only(options)).value() == doctest::Approx(735.4 / 614.8));
  options.backward = true;
  CHECK(fa3OverCudnn(only(options)).value() == doctest::Approx(579.5 / 536.6));
  options.dtype = "fp16";
  CHECK_FALSE(fa3OverCudnn(only(options)).has_value());
  CHECK_FALSE(fa3OverCudnn(only({.dims = "128", .seqs = "8192", .masks = "causal", .heads = "8"})).has_value());
  CHECK_FALSE(fa3OverCudnn(only({.dims = "128", .seqs = "8192", .masks = "window:64"})).has_value());
  CHECK_FALSE(fa3Source().empty());
}

TEST_CASE("refusals name the option, the value and what is accepted") {
  auto holds = [](const std::string &text, std::initializer_list<const char *> needles) {
    CAPTURE(text);
    for (const char *needle : needles)
      CHECK(text.find(needle) != std::string::npos);
  };
  holds(refusal({.dims = "64,wide"}), {"--dims", "wide", "N:M"});
  holds(refusal({.seqs = "0"}), {"--seqs", "'0'"});
  holds(refusal({.seqs = ""}), {"--seqs"});
  holds(refusal({.masks = "none,diagonal"}), {"--masks", "diagonal", "window:N"});
  holds(refusal({.masks = "window:0"}), {"--masks", "window:0"});
  holds(refusal({.heads = "three"}), {"--heads", "three"});
  holds(refusal({.heads = "3:2"}), {"3", "2"});
  holds(refusal({.dtype = "fp32"}), {"--dtype", "fp32", "bf16"});
  holds(refusal({.dtype = "int8"}), {"int8"});
  holds(refusal({.cases = "chairs"}), {"--cases", "chairs", "hopper"});
}
