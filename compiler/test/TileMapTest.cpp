// Tile classification against brute force: sound for every mask, exact for the ones that have a closed form.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "tilewright/expr/Parser.h"
#include "tilewright/problem/TileMap.h"
#include "tilewright/tensor/Table.h"
#include <fmt/format.h>
#include <random>

using namespace tilewright;

namespace {

struct Case {
  std::string mask;
  bool exact; ///< No tile may be called partial that is not.
};

struct Tables {
  std::vector<TableSpec> specs;
  std::vector<Table> tables;
  std::vector<expr::TableData> data() const {
    std::vector<expr::TableData> all;
    for (const Table &table : tables) all.push_back(table.data());
    return all;
  }
};

TileClass bruteForce(const Problem &p, const expr::Expr *mask, const std::vector<expr::TableData> &tables, int64_t i,
                     int64_t j, int64_t tileQ, int64_t tileKV) {
  bool any = false, all = (j + 1) * tileKV <= p.seqKV; // a tile that crosses the end needs its bounds check
  for (int64_t q = i * tileQ; q < std::min((i + 1) * tileQ, p.seqQ); ++q)
    for (int64_t k = j * tileKV; k < std::min((j + 1) * tileKV, p.seqKV); ++k) {
      expr::Point point{.q = q, .k = k, .sq = p.seqQ, .sk = p.seqKV};
      bool visible = !mask || expr::evaluateBool(*mask, point, tables);
      any |= visible;
      all &= visible;
    }
  return !any ? TileClass::Empty : all ? TileClass::Full : TileClass::Partial;
}

void check(const Case &c, int64_t seqQ, int64_t seqKV, int64_t tileQ, int64_t tileKV, const Tables &tables = {}) {
  Problem p;
  p.seqQ = seqQ;
  p.seqKV = seqKV;
  p.mask = c.mask;
  p.tables = tables.specs;
  CAPTURE(c.mask);
  CAPTURE(seqQ);
  CAPTURE(seqKV);
  CAPTURE(tileQ);
  CAPTURE(tileKV);
  std::vector<expr::TableData> data = tables.data();
  Expected<TileMap> map = TileMap::make(p, tileQ, tileKV, data);
  if (!map) FAIL(map.error().text());
  expr::ExprPtr mask;
  if (!c.mask.empty()) mask = *expr::parseMask(p.fullMask(), p.tables);
  int64_t unsound = 0, inexact = 0, firstI = -1, firstJ = -1;
  TileCounts counts;
  for (int64_t i = 0; i < map->rows(); ++i)
    for (int64_t j = 0; j < map->cols(); ++j) {
      TileClass truth = bruteForce(p, mask.get(), data, i, j, tileQ, tileKV), found = map->at(i, j);
      // Calling a tile partial is always right; empty and full must be true.
      bool wrong = found != truth && found != TileClass::Partial;
      if (wrong && firstI < 0) firstI = i, firstJ = j;
      unsound += wrong;
      inexact += found != truth;
      (found == TileClass::Empty ? counts.empty : found == TileClass::Full ? counts.full : counts.partial) += 1;
    }
  CAPTURE(firstI);
  CAPTURE(firstJ);
  CHECK(unsound == 0);
  if (c.exact) CHECK(inexact == 0);
  CHECK(counts == map->counts);
}

const Case kCases[] = {
    {"", true},
    {"k <= q + sk - sq", true},
    {"k >= q + sk - sq - 100 && k <= q + sk - sq + 30", true},
    {"k <= q && q - k < 10", true},
    {"abs(q - k) < 77", true},
    {"abs(q - k) >= 77", true},
    {"k < 100 || k <= q", true},
    {"k >= 100 && k >= q", true},
    {"q // 100 == k // 100", true},
    {"q // 100 == k // 100 && k <= q", true},
    {"q // 64 >= k // 64", true},
    {"k < 4 || k <= q && q - k < 150", true},
    {"!(k < 4) && !(k > q)", true},
    {"k == 0", true},
    {"k != q", true},
    {"q < 37", true},
    {"k < 70 && q < 130", true},
    {"2 * k <= q", true},
    {"3 * k >= q - 5", true},
    {"min(k, q) < 50", true},
    {"max(k, q) < 90", true},
    {"abs(abs(abs(abs(k - q) - 40) - 20) - 10) < 5", false},
    {"k % 128 < 64", true},
    {"(q - k) % 4 == 0", false},
    {"(q - k) % 4 == 0 && k <= q", false},
    {"k <= q && (q - k < 96 || k % 256 < 32)", false},
    {"where(q < 100, k < 50, k <= q)", false},
    {"k * q < 5000", true},
    {"(k + q) % 300 > 200", true},
    {"q // 7 + k // 13 < 20", true},
    {"0.5 * q > k", false},
    {"k < 0", true},
};

} // namespace

TEST_CASE("masks of positions") {
  const int64_t lengths[][2] = {{300, 300}, {257, 500}, {500, 130}, {1, 200}, {200, 1}, {64, 64}};
  const int64_t tiles[][2] = {{64, 64}, {128, 32}, {16, 96}};
  for (const Case &c : kCases) {
    for (auto &length : lengths)
      for (auto &tile : tiles) check(c, length[0], length[1], tile[0], tile[1]);
  }
}

TEST_CASE("documents in tables") {
  std::mt19937 random(7);
  for (int round = 0; round < 6; ++round) {
    int64_t sq = 200 + random() % 300, sk = 200 + random() % 300;
    auto ids = [&](int64_t n, bool sorted) {
      std::vector<int32_t> v(n);
      int32_t id = -3;
      for (int32_t &x : v) {
        if (random() % 60 == 0) ++id;
        x = sorted ? id : static_cast<int32_t>(random());
      }
      return v;
    };
    Tables tables;
    for (auto [name, n, axis] : {std::tuple("dk", sk, TableAxis::K), std::tuple("dq", sq, TableAxis::Q)}) {
      std::vector<int32_t> values = ids(n, round != 5);
      tables.specs.push_back({name, false, {axis}});
      tables.tables.push_back(*Table::ofInts(values, {n}, name));
    }
    for (const char *mask : {"dq[q] == dk[k]", "dq[q] == dk[k] && k <= q", "dq[q] < dk[k]", "dk[k] <= dq[q] || k < 5", "dq[q] != dk[k]"})
      check({mask, false}, sq, sk, 64, 48, tables);
    check({"dq[q] == dk[k]", round != 5}, sq, sk, 64, 64, tables);
  }
}

TEST_CASE("deep nesting is classified in time, and soundly") {
  std::string deep = "k - q";
  for (int level = 0; level < 45; ++level) deep = "abs(" + deep + " - " + std::to_string(60 + level % 7) + ")";
  check({deep + " < 40", false}, 300, 300, 64, 64);
  std::string mixed = "k";
  for (int level = 0; level < 30; ++level) mixed = "min(max(abs(" + mixed + " - 9), q - 50), k + 3)";
  check({mixed + " < 70", false}, 200, 300, 64, 64);
}

TEST_CASE("extreme table elements do not overflow") {
  std::vector<int32_t> low(128, std::numeric_limits<int32_t>::min()), high(128, std::numeric_limits<int32_t>::max());
  Tables tables;
  tables.specs = {{"a", false, {TableAxis::Q}}, {"z", false, {TableAxis::K}}};
  tables.tables.push_back(*Table::ofInts(low, {128}, "a"));
  tables.tables.push_back(*Table::ofInts(high, {128}, "z"));
  for (const char *mask : {"a[q] < z[k]", "a[q] > z[k]", "z[k] < a[q]", "a[q] == z[k]", "a[q] != z[k]", "a[q] + 1 < z[k]"})
    check({mask, true}, 128, 128, 64, 64, tables);
}

TEST_CASE("visible pairs and lengths of zero") {
  Problem p;
  p.causal = true;
  p.seqQ = p.seqKV = 100;
  p.headsQ = p.headsKV = 3;
  p.batch = 2;
  CHECK(TileMap::make(p, 64, 64, {})->visiblePairs == 6 * 5050);
  p.mask = "k % 2 == 0";
  CHECK(TileMap::make(p, 64, 64, {})->visiblePairs == 6 * 2550);
  p.seqKV = 0;
  Expected<TileMap> empty = TileMap::make(p, 64, 64, {});
  CHECK(empty->counts == TileCounts{});
  CHECK(empty->visiblePairs == 0);
}
