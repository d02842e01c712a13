#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/reference/Verify.h"
#include "TiledAttention.h"
#include <cmath>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace tilewright;
using namespace tilewright::test;

namespace {

using Slope = std::function<double(double, const expr::Point &)>;
const Slope kNoSlope = [](double, const expr::Point &) { return 1.0; };
const Slope kSoftcapSlope = [](double s, const expr::Point &) { return 1 - std::tanh(s) * std::tanh(s); };

AttentionCase caseOf(DType dtype, int64_t seqQ, int64_t seqKV) {
  AttentionCase c;
  c.problem.headsQ = 4;
  c.problem.headsKV = 2;
  c.problem.seqQ = seqQ;
  c.problem.seqKV = seqKV;
  c.problem.dimQK = 32;
  c.problem.dimV = 16;
  c.problem.dtype = dtype;
  c.problem.direction = Direction::Backward;
  return c;
}

Verification verify(const AttentionCase &c, const TiledAttention &t, VerifyOptions options = {}) {
  auto result = verifyAttention(c.problem, c.inputs(),
                                {t.o.view(), t.lse.view(), t.dQ.view(), t.dK.view(), t.dV.view()}, options);
  if (!result) FAIL(result.error().text());
  return *result;
}

constexpr std::pair<int64_t, int64_t> kLengths[] = {{1, 1}, {1, 2}, {2, 1}, {1, 17}, {5, 5}, {20, 33}, {33, 9}};

/// Every length and dtype, a few seeds each, against both yardsticks.
void checkAccepted(const std::function<void(AttentionCase &)> &shape, const Slope &slope) {
  for (DType dtype : {DType::F32, DType::F16, DType::BF16})
    for (auto [seqQ, seqKV] : kLengths)
      for (uint64_t seed = 0; seed < 8; ++seed) {
        AttentionCase c = caseOf(dtype, seqQ, seqKV);
        shape(c);
        fill(c, elementType(dtype), seed);
        const TiledAttention t(c, slope);
        for (NaiveRounding naive : {NaiveRounding::Matrices, NaiveRounding::OperandsOnly}) {
          VerifyOptions options;
          options.threads = 1;
          options.naive = naive;
          const Verification v = verify(c, t, options);
          INFO(toString(dtype), " ", seqQ, "x", seqKV, " seed ", seed, ": ", v.failure());
          CHECK(v.ok);
          for (const auto *figures : {&v.o, &v.lse, &v.dQ, &v.dK, &v.dV})
            CHECK((*figures)->withinFieldRule);
        }
      }
}

} // namespace

TEST_CASE("a kernel's order of work is accepted: no mask") {
  checkAccepted([](AttentionCase &) {}, kNoSlope);
}

TEST_CASE("a kernel's order of work is accepted: causal") {
  checkAccepted(
      [](AttentionCase &c) {
        c.problem.causal = true;
        c.visible = [](const expr::Point &at) { return at.k <= at.q + at.sk - at.sq; };
      },
      kNoSlope);
}

TEST_CASE("a kernel's order of work is accepted: rows that see one key, whose dQ is the noise around 0") {
  checkAccepted(
      [](AttentionCase &c) {
        c.problem.window = {0, 0};
        c.visible = [](const expr::Point &at) { return at.k == at.q + at.sk - at.sq; };
      },
      kNoSlope);
}

TEST_CASE("a kernel's order of work is accepted: softcap") {
  checkAccepted(
      [](AttentionCase &c) {
        c.problem.softcap = 1;
        c.score = [](double s, const expr::Point &) { return std::tanh(s); };
      },
      kSoftcapSlope);
}

TEST_CASE("a kernel's order of work is accepted: nasty data") {
  for (DataPattern pattern :
       {DataPattern::OutlierChannels, DataPattern::StrongFirstToken, DataPattern::AllEqual, DataPattern::HugeNegative})
    for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      AttentionCase c = caseOf(dtype, 40, 40);
      auto data = randomTensors(c.problem, 3, pattern);
      REQUIRE(data);
      c.data = std::move(*data);
      const TiledAttention t(c, kNoSlope);
      for (NaiveRounding naive : {NaiveRounding::Matrices, NaiveRounding::OperandsOnly}) {
        const Verification v = verify(c, t, {0, 0, 0, 2, naive});
        INFO(toString(pattern), " ", toString(dtype), ": ", v.failure());
        CHECK(v.ok);
      }
    }
}

TEST_CASE("each bug is caught, in every dtype") {
  for (DType dtype : {DType::F32, DType::F16, DType::BF16})
    for (Bug bug : {Bug::LastKeyLost, Bug::FirstTileNotRescaled, Bug::SlopeForgotten, Bug::DeltaForgotten,
                    Bug::WrongHead, Bug::ScaleForgotten}) {
      AttentionCase c = caseOf(dtype, 20, 33);
      c.problem.softcap = 1;
      c.score = [](double s, const expr::Point &) { return std::tanh(s); };
      fill(c, elementType(dtype), 1);
      const TiledAttention t(c, kSoftcapSlope, bug);
      const Verification v = verify(c, t);
      CAPTURE(static_cast<int>(bug));
      CAPTURE(toString(dtype));
      CHECK_FALSE(v.ok);
      CHECK_FALSE(v.failure().empty());
    }
}

TEST_CASE("one wrong element is found and named") {
  AttentionCase c = caseOf(DType::BF16, 20, 33);
  fill(c, ElementType::BF16, 1);
  TiledAttention t(c, kNoSlope);
  REQUIRE(verify(c, t).ok);
  t.lse.set(0, 3, 19, 0, t.lse.at(0, 3, 19, 0) + 0.1);
  const Verification v = verify(c, t);
  CHECK_FALSE(v.lse->ok);
  CHECK(v.o->ok);
  CHECK(v.failure().starts_with("lse: error 0.1"));
  CHECK(v.failure().find("at batch 0, head 3, row 19, dim 0 is") != std::string::npos);
  t.dK.set(0, 1, 32, 7, std::nan(""));
  t.lse.set(0, 3, 19, 0, t.lse.at(0, 3, 19, 0) - 0.1);
  CHECK(verify(c, t).failure() == "dk: 1 of 2112 elements are NaN or infinite where the reference is not, or the "
                                  "reverse, first at batch 0, head 1, row 32, dim 7");
}

TEST_CASE("NaN in the input belongs in the output, in the same places") {
  AttentionCase c = caseOf(DType::F16, 12, 12);
  c.problem.causal = true;
  c.visible = [](const expr::Point &at) { return at.k <= at.q; };
  fill(c, ElementType::F16, 1);
  c.data.k.set(0, 1, 9, 3, std::nan(""));
  c.data.v.set(0, 0, 10, 3, std::nan(""));
  TiledAttention t(c, kNoSlope);
  const Verification v = verify(c, t);
  INFO(v.failure());
  CHECK(v.ok);
  t.o.set(0, 0, 11, 3, 0);
  CHECK_FALSE(verify(c, t).ok);
}

TEST_CASE("a choice of rows leaves dK and dV out; the rest is the same") {
  AttentionCase c = caseOf(DType::F32, 33, 9);
  c.problem.causal = true;
  c.visible = [](const expr::Point &at) { return at.k <= at.q + at.sk - at.sq; };
  fill(c, ElementType::F32, 1);
  TiledAttention t(c, kNoSlope);
  VerifyOptions options;
  options.rows = 8;
  const Verification v = verify(c, t, options);
  CHECK(v.ok);
  CHECK(v.rows.size() == 8);
  CHECK_FALSE(v.dK.has_value());
  CHECK(v.dQ->elements == 4 * 8 * 32);
  CHECK(v.emptyRows > 0);
  CHECK(verify(c, t).emptyRows == 4 * 24);
  t.o.set(0, 0, v.rows[5], 0, 10);
  CHECK_FALSE(verify(c, t, options).ok);
  const nlohmann::json json = v;
  CHECK(json["rows_checked"] == 8);
  CHECK(json["ok"] == true);
  CHECK(json.contains("dq"));
  CHECK_FALSE(json.contains("dk"));
}
