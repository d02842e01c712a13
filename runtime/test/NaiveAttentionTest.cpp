#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/reference/NaiveAttention.h"
#include "AttentionCase.h"
#include "tilewright/tensor/Half.h"
#include <cmath>
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::test;

namespace {

AttentionCase caseOf(DType dtype, int64_t seqQ, int64_t seqKV, int64_t dim) {
  AttentionCase c;
  c.problem.seqQ = seqQ;
  c.problem.seqKV = seqKV;
  c.problem.dimQK = c.problem.dimV = dim;
  c.problem.dtype = dtype;
  c.problem.direction = Direction::Backward;
  fill(c, elementType(dtype), 1);
  return c;
}

AttentionResult naive(const AttentionCase &c, NaiveRounding rounding = NaiveRounding::Matrices) {
  auto result = naiveAttention(c.problem, c.inputs(), {}, rounding);
  if (!result) FAIL(result.error().text());
  return std::move(*result);
}

AttentionResult reference(const AttentionCase &c) {
  auto result = referenceAttention(c.problem, c.inputs());
  if (!result) FAIL(result.error().text());
  return std::move(*result);
}

double largestDifference(const Tensor &a, const Tensor &b) {
  const TensorShape s = a.shape();
  double most = 0;
  for (int64_t h = 0; h < s.heads; ++h)
    for (int64_t row = 0; row < s.rows; ++row)
      for (int64_t d = 0; d < s.dim; ++d)
        most = std::max(most, std::fabs(a.at(0, h, row, d) - b.at(0, h, row, d)));
  return most;
}

} // namespace

TEST_CASE("one query, two keys, by hand: what is rounded, and where") {
  AttentionCase c = caseOf(DType::BF16, 1, 2, 2);
  c.problem.scale = 1;
  auto set = [](Tensor &t, std::initializer_list<double> values) {
    int64_t i = 0;
    for (double value : values) {
      t.set(0, 0, i / 2, i % 2, value);
      ++i;
    }
  };
  set(c.data.q, {1, 0.0078125}); // 2^-7
  set(c.data.k, {1, 1, 0, 0});
  set(c.data.v, {1, 0, 0, 1});
  set(c.data.dO, {1, 0});
  auto round = [](float x) { return floatFromBFloat16(bfloat16FromFloat(x)); };
  // S = (1 + 2^-7, 0) is exact in bf16; P is rounded, then O.
  const float s = 1.0078125f, e = std::exp(-s), p0 = round(1 / (1 + e)), p1 = round(e / (1 + e));
  const AttentionResult result = naive(c);
  CHECK(result.o.at(0, 0, 0, 0) == p0);
  CHECK(result.o.at(0, 0, 0, 1) == p1);
  CHECK(result.lse.at(0, 0, 0, 0) == doctest::Approx(std::log(std::exp(s) + 1)).epsilon(1e-6));
  CHECK(result.lse.at(0, 0, 0, 0) != round(static_cast<float>(result.lse.at(0, 0, 0, 0))));
  // dP = (1, 0), so D = P0.
  const float dS0 = round(p0 * (1 - p0)), dS1 = round(p1 * (0 - p0));
  CHECK(result.dQ.at(0, 0, 0, 0) == round(dS0));
  CHECK(result.dK.at(0, 0, 0, 0) == round(dS0));
  CHECK(result.dK.at(0, 0, 1, 0) == round(dS1));
  CHECK(result.dV.at(0, 0, 0, 0) == p0);

  set(c.data.k, {1, 0.5, 0, 0}); // S = 1 + 2^-8: halfway, stored as 1
  CHECK(naive(c).lse.at(0, 0, 0, 0) == doctest::Approx(std::log(std::exp(1) + 1)).epsilon(1e-6));
  CHECK(naive(c, NaiveRounding::OperandsOnly).lse.at(0, 0, 0, 0) ==
        doctest::Approx(std::log(std::exp(1.00390625) + 1)).epsilon(1e-6));
}

TEST_CASE("the error is the dtype's own") {
  struct Expected {
    DType dtype;
    double least, most;
  };
  for (const Expected &e : {Expected{DType::F32, 1e-8, 2e-5}, {DType::F16, 1e-5, 6e-3}, {DType::BF16, 1e-4, 3e-2}}) {
    const AttentionCase c = caseOf(e.dtype, 60, 70, 64);
    const AttentionResult n = naive(c), r = reference(c);
    for (const auto &[result, exact] : {std::pair{&n.o, &r.o}, {&n.dQ, &r.dQ}, {&n.dK, &r.dK}, {&n.dV, &r.dV}}) {
      const double error = largestDifference(*result, *exact);
      CHECK(error > e.least);
      CHECK(error < e.most);
    }
    CHECK(largestDifference(n.lse, r.lse) < e.most);
  }
}

TEST_CASE("results are values of the dtype") {
  const AttentionCase c = caseOf(DType::F16, 20, 20, 16);
  const AttentionResult n = naive(c);
  for (const Tensor *t : {&n.o, &n.dQ, &n.dK, &n.dV})
    for (int64_t row = 0; row < 20; ++row)
      for (int64_t d = 0; d < 16; ++d) {
        const auto value = static_cast<float>(t->at(0, 0, row, d));
        CHECK(floatFromHalf(halfFromFloat(value)) == value);
      }
}

TEST_CASE("rounding the operands alone is the stricter yardstick where scores are large") {
  for (DType dtype : {DType::F16, DType::BF16}) {
    AttentionCase c = caseOf(dtype, 100, 100, 64);
    auto data = randomTensors(c.problem, 1, DataPattern::HugeNegative);
    REQUIRE(data);
    c.data = std::move(*data);
    const AttentionResult r = reference(c);
    const double matrices = largestDifference(naive(c).o, r.o);
    const double operands = largestDifference(naive(c, NaiveRounding::OperandsOnly).o, r.o);
    CHECK(operands < matrices / 2);
  }
}

TEST_CASE("a softcap caps: scores 100 and 0, cap 5") {
  for (DType dtype : {DType::F32, DType::F16}) {
    AttentionCase c = caseOf(dtype, 1, 2, 8);
    c.problem.scale = 1;
    for (int64_t d = 0; d < 8; ++d) {
      c.data.q.set(0, 0, 0, d, d == 0 ? 10 : 0);
      for (int64_t key = 0; key < 2; ++key) {
        c.data.k.set(0, 0, key, d, key == 0 && d == 0 ? 10 : 0);
        c.data.v.set(0, 0, key, d, key == 0 ? 1 : 0);
      }
    }
    for (bool asScore : {false, true}) {
      c.problem.softcap = asScore ? 0 : 5;
      c.problem.score = asScore ? "5 * tanh(s / 5)" : "";
      CHECK(reference(c).o.at(0, 0, 0, 3) == doctest::Approx(0.993307).epsilon(1e-5));
      CHECK(reference(c).lse.at(0, 0, 0, 0) == doctest::Approx(5.006715).epsilon(1e-6));
      CHECK(naive(c).o.at(0, 0, 0, 3) == doctest::Approx(0.993307).epsilon(dtype == DType::F32 ? 1e-5 : 1e-3));
    }
    c.problem.mask = "k == 0";
    CHECK(reference(c).lse.at(0, 0, 0, 0) == doctest::Approx(5));
  }
}

TEST_CASE("scores beyond fp16 stay numbers") {
  AttentionCase c = caseOf(DType::F16, 6, 128, 64);
  c.problem.score = "where(q % 3 == 0, -3.4e38, s)";
  const AttentionResult constant = naive(c);
  CHECK(std::isfinite(constant.lse.at(0, 0, 0, 0)));
  CHECK(largestDifference(constant.o, reference(c).o) < 6e-3);
  CHECK(constant.dQ.at(0, 0, 3, 5) == 0);
  c.problem.score.clear();
  for (int64_t d = 0; d < 64; ++d) {
    for (int64_t row = 0; row < 6; ++row)
      c.data.q.set(0, 0, row, d, 60);
    for (int64_t key = 0; key < 128; ++key)
      c.data.k.set(0, 0, key, d, key % 2 ? -60 : 60);
  }
  const AttentionResult even = reference(c);
  CHECK(even.lse.at(0, 0, 0, 0) == doctest::Approx(28804.159).epsilon(1e-7));
  CHECK(largestDifference(naive(c).o, even.o) < 6e-3);
}

TEST_CASE("empty rows and invisible NaN as in the reference") {
  AttentionCase c = caseOf(DType::BF16, 5, 3, 8);
  c.problem.causal = true;
  c.data.v.set(0, 0, 2, 0, std::nan(""));
  const AttentionResult n = naive(c);
  CHECK(std::isinf(n.lse.at(0, 0, 1, 0)));
  CHECK(n.o.at(0, 0, 1, 0) == 0);
  CHECK(n.dQ.at(0, 0, 1, 0) == 0);
  CHECK(std::isfinite(n.o.at(0, 0, 3, 0)));
  CHECK(std::isnan(n.o.at(0, 0, 4, 0)));
}
