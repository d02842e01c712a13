#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/plan/Problem.h"
#include <cmath>
#include <doctest/doctest.h>
#include <limits>

using namespace tilewright;

namespace {

Problem plain() {
  Problem problem;
  problem.batch = 2;
  problem.headsQ = 8;
  problem.headsKV = 2;
  problem.seqQ = 100;
  problem.seqKV = 300;
  return problem;
}

/// The error of `plain()` changed by `change`; "" when it is valid.
template <class Change> std::string errorOf(Change change) {
  Problem problem = plain();
  change(problem);
  Status status = problem.validate();
  return status ? "" : status.error().text();
}

bool contains(const std::string &text, std::string_view piece) { return text.find(piece) != std::string::npos; }

std::string maskOf(bool causal, Window window, std::string mask = "") {
  Problem problem = plain();
  problem.causal = causal;
  problem.window = window;
  problem.mask = std::move(mask);
  REQUIRE(problem.validate());
  return problem.fullMask();
}

std::string scoreOf(double softcap, std::string score = "") {
  Problem problem = plain();
  problem.softcap = softcap;
  problem.score = std::move(score);
  REQUIRE(problem.validate());
  return problem.fullScore();
}

} // namespace

TEST_CASE("a plain problem is valid, and so are its edges") {
  CHECK(errorOf([](Problem &) {}) == "");
  CHECK(errorOf([](Problem &p) { p.batch = 0; }) == "");
  CHECK(errorOf([](Problem &p) { p.seqQ = 0; }) == "");
  CHECK(errorOf([](Problem &p) { p.seqKV = 0; }) == "");
  CHECK(errorOf([](Problem &p) { p.seqQ = p.seqKV = kMaxSequence; }) == "");
  CHECK(errorOf([](Problem &p) { p.dimQK = 1; }) == "");
  CHECK(errorOf([](Problem &p) { p.dimV = 512; }) == "");
  CHECK(errorOf([](Problem &p) { p.window = {INT32_MAX, INT32_MAX}; }) == "");
  CHECK(errorOf([](Problem &p) { p.window = {INT64_MAX, INT64_MAX}; }) == "");
  CHECK(errorOf([](Problem &p) { p.scale = -0.5; }) == "");
}

TEST_CASE("head counts name both numbers") {
  struct {
    int64_t q, kv;
  } const bad[] = {{33, 2}, {3, 2}, {8, 0}, {0, 1}, {4, 8}, {-4, 2}, {kMaxHeads + 1, 1}};
  for (auto [q, kv] : bad) {
    std::string error = errorOf([&](Problem &p) { p.headsQ = q, p.headsKV = kv; });
    CAPTURE(error);
    CHECK(contains(error, std::to_string(q) + " query heads"));
    CHECK(contains(error, std::to_string(kv) + " kv heads"));
  }
}

TEST_CASE("numbers out of range name the field, the value and the range") {
  CHECK(errorOf([](Problem &p) { p.batch = -1; }) == "input: batch: expected 0 to 2147483647, found -1");
  CHECK(errorOf([](Problem &p) { p.batch = int64_t{1} << 31; }) ==
        "input: batch: expected 0 to 2147483647, found 2147483648");
  CHECK(errorOf([](Problem &p) { p.seqQ = -3; }) == "input: seq_q: expected 0 to 268435456, found -3");
  CHECK(errorOf([](Problem &p) { p.seqKV = kMaxSequence + 1; }) ==
        "input: seq_kv: expected 0 to 268435456, found 268435457");
  CHECK(errorOf([](Problem &p) { p.dimQK = 0; }) == "input: dim_qk: expected 1 to 512, found 0");
  CHECK(errorOf([](Problem &p) { p.dimV = 513; }) == "input: dim_v: expected 1 to 512, found 513");
  CHECK(contains(errorOf([](Problem &p) { p.window.left = -3; }), "left bound must be 0 or more, or -1 for unbounded; "
                                                                  "found -3"));
  CHECK(contains(errorOf([](Problem &p) { p.window.right = -2; }), "right bound"));
  for (double softcap : {-1.0, double{NAN}, double{INFINITY}, 1e39, 1e-39})
    CHECK(contains(errorOf([&](Problem &p) { p.softcap = softcap; }), "softcap: expected 0 (none) or"));
  for (double scale : {double{NAN}, -double{INFINITY}, 1e39})
    CHECK(contains(errorOf([&](Problem &p) { p.scale = scale; }), "scale: expected a finite number"));
}

TEST_CASE("tensors that 64-bit offsets cannot reach are refused") {
  std::string error = errorOf([](Problem &p) {
    p.batch = kMaxBatch;
    p.headsQ = p.headsKV = kMaxHeads;
    p.seqKV = kMaxSequence;
  });
  CHECK(contains(error, "size of k: 2147483647 x 65536 x 268435456 x 64"));
}

TEST_CASE("tables are checked") {
  TableSpec doc{"doc", false, {TableAxis::K}};
  auto withTables = [](std::vector<TableSpec> tables, std::string mask = "doc[k] > 0") {
    return errorOf([&](Problem &p) { p.tables = tables, p.mask = mask; });
  };
  CHECK(withTables({doc}) == "");
  CHECK(contains(withTables({}), "no table named doc"));
  CHECK(contains(withTables({doc, {"len", false, {TableAxis::B}}}), "neither mask nor score reads len[b]"));
  CHECK(contains(withTables({doc, doc}), "sorted"));
  CHECK(contains(withTables({doc, {"a", false, {TableAxis::B}}}, "doc[k] > a[b]"), "a[b] is listed after doc[k]"));
  CHECK(withTables({{"doc", false, {TableAxis::Q}}, doc}, "doc[k] == doc[q]") == "");
  CHECK(contains(withTables({{"doc", true, {TableAxis::Q}}, doc}, "doc[k] == doc[q]"), "both int32 and float32"));
  CHECK(contains(withTables({{"q", false, {TableAxis::K}}}), "\"q\" cannot name a table"));
  CHECK(contains(withTables({{"1a", false, {TableAxis::K}}}), "cannot name a table"));
  CHECK(contains(withTables({{"doc", false, {}}}), "cannot be read"));
  CHECK(contains(withTables({{"doc", false, {TableAxis::Q, TableAxis::K}}}), "doc[q, k] cannot be read"));
  std::vector<TableSpec> nine;
  std::string mask = "true";
  for (char c = 'A'; c < 'J'; ++c) {
    nine.push_back({std::string(1, c), false, {TableAxis::K}});
    mask += std::string(" && ") + c + "[k] > 0";
  }
  CHECK(contains(withTables(nine, mask), "9 readings of tables; a kernel takes at most 8"));
}

TEST_CASE("expressions are checked") {
  CHECK(contains(errorOf([](Problem &p) { p.mask = "k <= "; }), "mask: expected a number"));
  CHECK(contains(errorOf([](Problem &p) { p.score = "k < q"; }), "score: a score is a number"));
  CHECK(contains(errorOf([](Problem &p) { p.mask = "q * k * sq > 1"; }), "q * k * sq could leave 64-bit integers"));
  std::string longScore = "s";
  for (int i = 0; i < 700; ++i)
    longScore += " + s";
  CHECK(errorOf([&](Problem &p) { p.score = longScore; }) == "");
  std::string error = errorOf([&](Problem &p) { p.score = longScore, p.softcap = 5; });
  CHECK(contains(error, "at most 4096"));
  CHECK(contains(error, "softcap put in"));
}

TEST_CASE("causal and windows are one mask text, whatever their spelling") {
  CHECK(maskOf(false, {}) == "");
  CHECK(maskOf(true, {}) == "k <= q + sk - sq");
  CHECK(maskOf(false, {-1, 0}) == maskOf(true, {}));
  CHECK(maskOf(true, {-1, 7}) == maskOf(true, {}));
  CHECK(maskOf(true, {-1, INT32_MAX}) == maskOf(true, {}));
  CHECK(maskOf(false, {9, 0}) == "k >= q + sk - sq - 9 && k <= q + sk - sq");
  CHECK(maskOf(true, {9, 0}) == maskOf(false, {9, 0}));
  CHECK(maskOf(true, {9, -1}) == maskOf(false, {9, 0}));
  CHECK(maskOf(false, {32, 64}) == "k >= q + sk - sq - 32 && k <= q + sk - sq + 64");
  CHECK(maskOf(false, {0, 0}) == "k >= q + sk - sq && k <= q + sk - sq");
  CHECK(maskOf(false, {-1, INT32_MAX}) == "");
  CHECK(maskOf(false, {INT32_MAX, INT64_MAX}) == "");
  CHECK(maskOf(false, {kMaxSequence, kMaxSequence}) == "");
  CHECK(maskOf(false, {kMaxSequence - 1, -1}) == "k >= q + sk - sq - 268435455");
}

TEST_CASE("the user's mask joins causal and window, each condition once") {
  CHECK(maskOf(false, {}, "k<=q+sk-sq") == maskOf(true, {}));
  CHECK(maskOf(true, {}, "k <= q + sk - sq") == maskOf(true, {}));
  CHECK(maskOf(true, {}, "k < 3 || q > 2") == "k <= q + sk - sq && (k < 3 || q > 2)");
  CHECK(maskOf(false, {}, "k < 3 || q > 2") == "k < 3 || q > 2");
  CHECK(maskOf(false, {}, "true && (k < 3 || q > 2)") == "k < 3 || q > 2");
  CHECK(maskOf(false, {}, "k < 3 && (k < 3 && q > 2)") == "k < 3 && q > 2");
  CHECK(maskOf(true, {}, "true") == maskOf(true, {}));
  CHECK(maskOf(false, {}, "true") == "");
  CHECK(maskOf(true, {}, "false") == "k <= q + sk - sq && false");
}

TEST_CASE("softcap is the score expression that a user would write") {
  CHECK(scoreOf(0) == "");
  CHECK(scoreOf(0, "s") == "");
  CHECK(scoreOf(5) == "5.0 * tanh(s / 5.0)");
  CHECK(scoreOf(5) == scoreOf(0, "5 * tanh(s / 5)"));
  CHECK(scoreOf(0.1) == scoreOf(0, "0.1*tanh(s/0.1)"));
  CHECK(scoreOf(1e30) == scoreOf(0, "1e30 * tanh(s / 1e30)"));
  // The cap comes first.
  CHECK(scoreOf(5, "s + q") == "5.0 * tanh(s / 5.0) + q");
  CHECK(scoreOf(5, "2 * s") == "2.0 * (5.0 * tanh(s / 5.0))");
  CHECK(scoreOf(5, "where(s > 0, s, 1)") == "where(5.0 * tanh(s / 5.0) > 0.0, 5.0 * tanh(s / 5.0), 1.0)");
  CHECK(scoreOf(5, "1.0") == "1.0");
}

TEST_CASE("constants text holds compile-time fields alone") {
  std::string base = plain().constantsText();
  CHECK(base == "dim_qk=64\ndim_v=64\ndtype=bf16\ngroup=4\nmask=\nscore=\ntables=\n");
  auto text = [](auto change) {
    Problem problem = plain();
    change(problem);
    REQUIRE(problem.validate());
    return problem.constantsText();
  };
  CHECK(text([](Problem &p) { p.batch = 7; }) == base);
  CHECK(text([](Problem &p) { p.seqQ = 7; }) == base);
  CHECK(text([](Problem &p) { p.seqKV = 7; }) == base);
  CHECK(text([](Problem &p) { p.scale = 7; }) == base);
  CHECK(text([](Problem &p) { p.headsQ = 4, p.headsKV = 1; }) == base);
  CHECK(text([](Problem &p) { p.layout = Layout::BHSD; }) == base);
  CHECK(text([](Problem &p) { p.direction = Direction::Backward; }) == base);
  CHECK(text([](Problem &p) { p.window = {INT32_MAX, -1}; }) == base);
  CHECK(text([](Problem &p) { p.headsKV = 4; }) != base);
  CHECK(text([](Problem &p) { p.dimQK = 128; }) != base);
  CHECK(text([](Problem &p) { p.dimV = 128; }) != base);
  CHECK(text([](Problem &p) { p.dtype = DType::F16; }) != base);
  CHECK(text([](Problem &p) { p.causal = true; }) != base);
  CHECK(text([](Problem &p) { p.window.left = 9; }) != base);
  CHECK(text([](Problem &p) { p.softcap = 9; }) != base);
  CHECK(text([](Problem &p) { p.mask = "k < 3"; }) != base);
  CHECK(text([](Problem &p) { p.score = "s + 1"; }) != base);
  auto withTable = [](bool isFloat) {
    return [isFloat](Problem &p) { p.mask = "t[k] > 0", p.tables = {{"t", isFloat, {TableAxis::K}}}; };
  };
  CHECK(text(withTable(true)) != text(withTable(false)));
}

TEST_CASE("flops follow the field's convention") {
  Problem problem = plain();
  problem.dimQK = 128;
  problem.dimV = 64;
  CHECK(attentionFlops(problem, 1000) == 4.0 * 2 * 8 * 1000 * 96);
  problem.direction = Direction::Backward;
  CHECK(attentionFlops(problem, 1000) == 2.5 * 4.0 * 2 * 8 * 1000 * 96);
}

TEST_CASE("scale is 1/sqrt of the head dim unless given") {
  Problem problem = plain();
  CHECK(problem.effectiveScale() == 0.125);
  problem.scale = 0;
  CHECK(problem.effectiveScale() == 0);
  CHECK(problem.groupSize() == 4);
}
