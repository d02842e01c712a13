#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "AttentionCase.h"
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>
#include <limits>

using namespace tilewright;
using namespace tilewright::test;

namespace {

using Position = AttentionCase::Position;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Problem shape(int64_t batch, int64_t headsQ, int64_t headsKV, int64_t seqQ, int64_t seqKV, int64_t dimQK,
              int64_t dimV) {
  Problem p;
  p.batch = batch;
  p.headsQ = headsQ;
  p.headsKV = headsKV;
  p.seqQ = seqQ;
  p.seqKV = seqKV;
  p.dimQK = dimQK;
  p.dimV = dimV;
  p.dtype = DType::F32;
  p.direction = Direction::Backward;
  return p;
}

AttentionResult reference(const AttentionCase &c, const AttentionOptions &options = {}) {
  auto result = referenceAttention(c.problem, c.inputs(), options);
  if (!result) FAIL(result.error().text());
  return std::move(*result);
}

/// Largest difference of O and LSE from brute force; a mismatch of infinities counts as infinite.
double forwardError(const AttentionCase &c, const AttentionResult &result) {
  const Problem &p = c.problem;
  double error = 0;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.headsQ; ++h)
      for (int64_t row = 0; row < p.seqQ; ++row) {
        const BruteForceRow expected = bruteForceRow(c, b, h, row);
        for (int64_t d = 0; d < p.dimV; ++d)
          error = std::max(
              error, std::fabs(result.o.at(b, h, row, d) - static_cast<double>(expected.o[static_cast<size_t>(d)])));
        const double lse = result.lse.at(b, h, row, 0), expectedLse = static_cast<double>(expected.lse);
        error = std::max(error, lse == expectedLse ? 0 : std::fabs(lse - expectedLse));
      }
  return error;
}

double gradientError(AttentionCase &c, Tensor &input, const Tensor &gradient) {
  const TensorShape s = input.shape();
  double error = 0;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t row = 0; row < s.rows; ++row)
        for (int64_t d = 0; d < s.dim; ++d)
          error = std::max(error, std::fabs(gradient.at(b, h, row, d) - bruteForceGradient(c, input, b, h, row, d)));
  return error;
}

/// Forward to 1e-12, gradients to the accuracy of the differences.
void checkAll(AttentionCase &c) {
  fill(c, ElementType::F64, 11);
  const AttentionResult result = reference(c);
  CHECK(forwardError(c, result) < 1e-12);
  CHECK(gradientError(c, c.data.q, result.dQ) < 1e-8);
  CHECK(gradientError(c, c.data.k, result.dK) < 1e-8);
  CHECK(gradientError(c, c.data.v, result.dV) < 1e-8);
}

bool sameBytes(const Tensor &a, const Tensor &b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

} // namespace

TEST_CASE("no mask: two batch entries, grouped heads, dv != dqk, sq != sk") {
  for (Layout layout : {Layout::BSHD, Layout::BHSD}) {
    AttentionCase c;
    c.problem = shape(2, 6, 2, 3, 4, 3, 2);
    c.problem.layout = layout;
    checkAll(c);
  }
}

TEST_CASE("a scale of one's own, negative too") {
  for (double scale : {0.25, -1.5, 0.0}) {
    AttentionCase c;
    c.problem = shape(1, 2, 1, 3, 5, 4, 3);
    c.problem.scale = scale;
    checkAll(c);
  }
}

TEST_CASE("causal is bottom-right aligned; rows before the first key are empty") {
  for (auto [seqQ, seqKV] : {std::pair<int64_t, int64_t>{4, 4}, {3, 6}, {6, 3}, {1, 5}, {5, 1}}) {
    CAPTURE(seqQ);
    CAPTURE(seqKV);
    AttentionCase c;
    c.problem = shape(1, 2, 2, seqQ, seqKV, 3, 3);
    c.problem.causal = true;
    c.visible = [](const Position &at) { return at.k <= at.q + at.sk - at.sq; };
    checkAll(c);
  }
}

TEST_CASE("windows are inclusive on both sides") {
  AttentionCase c;
  c.problem = shape(1, 1, 1, 7, 6, 3, 2);
  c.problem.window = {2, 1};
  c.visible = [](const Position &at) {
    const int64_t centre = at.q + at.sk - at.sq;
    return at.k >= centre - 2 && at.k <= centre + 1;
  };
  checkAll(c);
}

TEST_CASE("masks by heads, batch entries and tables") {
  const int32_t documents[] = {0, 0, 0, 1, 1};
  const int32_t lengths[] = {3, 5};
  AttentionCase c;
  c.problem = shape(2, 4, 2, 5, 5, 3, 2);
  c.problem.mask = "doc[q] == doc[k] && k < len[b] && (h % 2 == 0 || k <= q)";
  c.problem.tables = {{"doc", false, {TableAxis::Q}}, {"doc", false, {TableAxis::K}}, {"len", false, {TableAxis::B}}};
  c.tables = {{documents, nullptr, 5}, {documents, nullptr, 5}, {lengths, nullptr, 2}};
  c.visible = [&](const Position &at) {
    return documents[at.q] == documents[at.k] && at.k < lengths[at.b] && (at.h % 2 == 0 || at.k <= at.q);
  };
  checkAll(c);
}

TEST_CASE("softcap and score expressions, with their derivatives") {
  const float slopes[] = {0.5f, 0.125f};
  const float biases[] = {0.1f, -0.2f, 0.3f, 1.5f, 0.0f, -1.0f, 0.4f, 0.25f};
  SUBCASE("softcap") {
    AttentionCase c;
    c.problem = shape(1, 2, 1, 3, 4, 4, 3);
    c.problem.softcap = 1.5;
    c.score = [](double s, const Position &) { return 1.5 * std::tanh(s / 1.5); };
    checkAll(c);
  }
  SUBCASE("ALiBi and a bias per batch entry and key") {
    AttentionCase c;
    c.problem = shape(2, 2, 2, 3, 4, 4, 3);
    c.problem.score = "s - slope[h] * abs(q + sk - sq - k) + bias[b, k]";
    c.problem.tables = {{"bias", true, {TableAxis::B, TableAxis::K}}, {"slope", true, {TableAxis::H}}};
    c.tables = {{nullptr, biases, 4}, {nullptr, slopes, 2}};
    c.score = [&](double s, const Position &at) {
      return s - slopes[at.h] * std::fabs(static_cast<double>(at.q + at.sk - at.sq - at.k)) + biases[at.b * 4 + at.k];
    };
    checkAll(c);
  }
  SUBCASE("softcap comes first, then the score, then the mask") {
    AttentionCase c;
    c.problem = shape(1, 2, 1, 4, 4, 4, 3);
    c.problem.softcap = 2;
    c.problem.score = "exp(s) * 0.5 + q";
    c.problem.causal = true;
    c.score = [](double s, const Position &at) {
      return std::exp(2 * std::tanh(s / 2)) * 0.5 + static_cast<double>(at.q);
    };
    c.visible = [](const Position &at) { return at.k <= at.q; };
    checkAll(c);
  }
}

TEST_CASE("many keys and rows: blocks, groups of rows and their remainders") {
  for (int64_t seqKV : {31, 32, 33, 200}) {
    CAPTURE(seqKV);
    AttentionCase c;
    c.problem = shape(1, 2, 1, 35, seqKV, 5, 7);
    c.problem.mask = "(q + k) % 3 != 0 && k >= q // 2";
    c.visible = [](const Position &at) { return (at.q + at.k) % 3 != 0 && at.k >= at.q / 2; };
    fill(c, ElementType::F64, 3);
    const AttentionResult result = reference(c);
    CHECK(forwardError(c, result) < 1e-12);
    for (int64_t i : {0, 3, 17, 30}) {
      CHECK(result.dQ.at(0, 1, i, 2) == doctest::Approx(bruteForceGradient(c, c.data.q, 0, 1, i, 2)).epsilon(1e-6));
      CHECK(result.dK.at(0, 0, i, 2) == doctest::Approx(bruteForceGradient(c, c.data.k, 0, 0, i, 2)).epsilon(1e-6));
      CHECK(result.dV.at(0, 0, i, 2) == doctest::Approx(bruteForceGradient(c, c.data.v, 0, 0, i, 2)).epsilon(1e-6));
    }
  }
}

TEST_CASE("no keys, no queries") {
  AttentionCase c;
  c.problem = shape(1, 2, 1, 3, 0, 4, 4);
  fill(c, ElementType::F32, 1);
  AttentionResult result = reference(c);
  CHECK(result.lse.at(0, 1, 2, 0) == -kInfinity);
  CHECK(result.o.at(0, 1, 2, 3) == 0);
  CHECK(result.dQ.at(0, 1, 2, 3) == 0);
  c.problem = shape(1, 2, 1, 0, 3, 4, 4);
  fill(c, ElementType::F32, 1);
  result = reference(c);
  CHECK(result.o.bytes() == 0);
  CHECK(result.dK.at(0, 0, 2, 3) == 0);
}

TEST_CASE("what no row sees does not matter, NaN included; what a row sees does") {
  AttentionCase c;
  c.problem = shape(1, 1, 1, 40, 40, 4, 4);
  c.problem.mask = "k < 20 && q != 7";
  fill(c, ElementType::F32, 2);
  const AttentionResult clean = reference(c);
  for (int64_t d = 0; d < 4; ++d) {
    for (int64_t key = 20; key < 40; ++key) {
      c.data.k.set(0, 0, key, d, std::nan(""));
      c.data.v.set(0, 0, key, d, kInfinity);
    }
    c.data.q.set(0, 0, 7, d, std::nan(""));
    c.data.dO.set(0, 0, 7, d, std::nan(""));
  }
  const AttentionResult padded = reference(c);
  CHECK(sameBytes(clean.o, padded.o));
  CHECK(sameBytes(clean.lse, padded.lse));
  CHECK(sameBytes(clean.dQ, padded.dQ));
  CHECK(sameBytes(clean.dK, padded.dK));
  CHECK(sameBytes(clean.dV, padded.dV));
  CHECK(padded.dK.at(0, 0, 25, 0) == 0);

  c.data.v.set(0, 0, 5, 2, std::nan(""));
  const AttentionResult poisoned = reference(c);
  CHECK(std::isnan(poisoned.o.at(0, 0, 3, 2)));
  CHECK(poisoned.o.at(0, 0, 3, 1) == clean.o.at(0, 0, 3, 1));
  CHECK(poisoned.o.at(0, 0, 7, 2) == 0);
  CHECK(std::isnan(poisoned.dQ.at(0, 0, 3, 0)));
  CHECK_FALSE(std::isnan(poisoned.lse.at(0, 0, 3, 0)));
  c.data.k.set(0, 0, 5, 0, std::nan(""));
  CHECK(std::isnan(reference(c).lse.at(0, 0, 3, 0)));
}

TEST_CASE("finite scores at the floor of fp32 are not a mask, a score of -infinity is") {
  AttentionCase c;
  c.problem = shape(1, 1, 1, 3, 6, 4, 2);
  c.problem.score = "where(q == 0, -3.4e38, where(k < 3, log(0.0), s))";
  fill(c, ElementType::F32, 4);
  const AttentionResult result = reference(c);
  double mean = 0;
  for (int64_t key = 0; key < 6; ++key)
    mean += c.data.v.at(0, 0, key, 1) / 6;
  CHECK(result.o.at(0, 0, 0, 1) == doctest::Approx(mean));
  CHECK(result.lse.at(0, 0, 0, 0) == doctest::Approx(-3.4e38));
  CHECK(result.dQ.at(0, 0, 0, 0) == 0);
  AttentionCase masked;
  masked.problem = c.problem;
  masked.problem.score.clear();
  masked.problem.mask = "k >= 3";
  fill(masked, ElementType::F32, 4);
  const AttentionResult expected = reference(masked);
  CHECK(result.o.at(0, 0, 2, 1) == expected.o.at(0, 0, 2, 1));
  CHECK(result.dQ.at(0, 0, 1, 3) == expected.dQ.at(0, 0, 1, 3));
}

TEST_CASE("a row whose every score is -infinity is empty, and hides what its keys hold") {
  AttentionCase c;
  c.problem = shape(1, 1, 1, 3, 6, 4, 2);
  c.problem.score = "where(q == 1 || k < 2, log(0.0), s)";
  fill(c, ElementType::F32, 4);
  c.data.v.set(0, 0, 1, 0, std::nan(""));
  const AttentionResult result = reference(c);
  CHECK(result.lse.at(0, 0, 1, 0) == -kInfinity);
  CHECK(result.o.at(0, 0, 1, 0) == 0);
  CHECK(result.dQ.at(0, 0, 1, 0) == 0);
  CHECK(std::isfinite(result.o.at(0, 0, 2, 0)));
  CHECK(std::isfinite(result.dQ.at(0, 0, 2, 0)));
  CHECK(result.dV.at(0, 0, 1, 0) == 0);
}

TEST_CASE("threads, and which rows are asked for, change nothing in a row's result") {
  AttentionCase c;
  c.problem = shape(2, 4, 2, 150, 70, 8, 5);
  c.problem.causal = true;
  fill(c, ElementType::BF16, 9);
  const AttentionResult all = reference(c, {{}, 1});
  const AttentionResult threaded = reference(c, {{}, 4});
  CHECK(sameBytes(all.o, threaded.o));
  CHECK(sameBytes(all.dK, threaded.dK));
  CHECK(sameBytes(all.dV, threaded.dV));
  const std::vector<int64_t> rows = sampleRows(150, 40, 1);
  CHECK(rows.size() == 40);
  CHECK(rows.front() == 0);
  CHECK(rows.back() == 149);
  const AttentionResult some = reference(c, {rows, 3});
  CHECK_FALSE(some.dK.valid());
  CHECK_FALSE(some.dV.valid());
  for (int64_t i = 0; i < 40; ++i)
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 4; ++h) {
        const int64_t row = rows[static_cast<size_t>(i)];
        CHECK(some.lse.at(b, h, i, 0) == all.lse.at(b, h, row, 0));
        CHECK(some.o.at(b, h, i, 4) == all.o.at(b, h, row, 4));
        CHECK(some.dQ.at(b, h, i, 7) == all.dQ.at(b, h, row, 7));
      }
  CHECK(sampleRows(3, 10, 0) == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("inputs that are not the problem's are refused by name") {
  AttentionCase c;
  c.problem = shape(1, 2, 1, 3, 4, 4, 4);
  fill(c, ElementType::F32, 1);
  c.problem.seqKV = 5;
  auto wrong = referenceAttention(c.problem, c.inputs());
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message ==
        "reference: k: expected shape (batch 1, seq 5, heads 1, dim 4), found (batch 1, seq 4, "
        "heads 1, dim 4)");
  c.problem.seqKV = 4;
  AttentionInputs missing = c.inputs();
  missing.dO = {};
  CHECK_FALSE(referenceAttention(c.problem, missing));
  c.problem.tables = {{"t", false, {TableAxis::K}}};
  CHECK_FALSE(referenceAttention(c.problem, c.inputs()));
  c.problem.tables.clear();
  CHECK_FALSE(referenceAttention(c.problem, c.inputs(), {{2, 1}, 0}));
  CHECK_FALSE(referenceAttention(c.problem, c.inputs(), {{0, 3}, 0}));
}
