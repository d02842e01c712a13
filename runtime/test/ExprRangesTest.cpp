#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "ExprRandomTree.h"
#include "tilewright/expr/Evaluator.h"
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::expr;

namespace {

constexpr int64_t kLast = kMaxSequence - 1;

/// The range of the left side of `text < 0`, which keeps an integer an integer.
std::optional<IntRange> range(const std::string &text) {
  auto mask = parseMask(text + " < 0", kRandomTables);
  REQUIRE(mask);
  REQUIRE(((*mask)->args[0]->type == Type::Int));
  return rangeOf(*(*mask)->args[0]);
}

} // namespace

TEST_CASE("ranges of leaves and simple sums") {
  CHECK(range("q") == IntRange{0, kLast});
  CHECK(range("sk") == IntRange{0, kMaxSequence});
  CHECK(range("h") == IntRange{0, kMaxHeads - 1});
  CHECK(range("b") == IntRange{0, kMaxBatch - 1});
  CHECK(range("t[k]") == IntRange{INT32_MIN, INT32_MAX});
  CHECK(range("7") == IntRange{7, 7});
  CHECK(range("q - k") == IntRange{-kLast, kLast});
  CHECK(range("abs(q - k)") == IntRange{0, kLast});
  CHECK(range("-q") == IntRange{-kLast, 0});
  CHECK(range("-3 * q") == IntRange{-3 * kLast, 0});
  CHECK(range("min(q, 10)") == IntRange{0, 10});
  CHECK(range("max(q, 10)") == IntRange{10, kLast});
  CHECK(range("where(k < 3, 5, -2)") == IntRange{-2, 5});
  CHECK(range("q // 64") == IntRange{0, kLast / 64});
  CHECK(range("(q - k) // 64") == IntRange{-(kLast + 63) / 64, kLast / 64});
  CHECK(range("q % 64") == IntRange{0, 63});
  CHECK(range("(min(q, 5) + 130) % 64") == IntRange{2, 7});
  CHECK(range("abs(t[k])") == IntRange{0, int64_t{INT32_MAX} + 1});
}

TEST_CASE("what may leave 64 bits has no range, and the node is named") {
  CHECK(range("q * k"));
  CHECK(range("t[q] * t[k]"));
  CHECK_FALSE(range("q * k * sq"));
  CHECK_FALSE(range("t[q] * t[k] * 4"));
  CHECK_FALSE(range("9223372036854775807 + q"));
  CHECK_FALSE(range("-9223372036854775807 - q"));
  CHECK_FALSE(range("(q * k * sq) % 2"));
  auto mask = parseMask("k <= q && q * k * sq < 5", kRandomTables);
  const Expr *node = overflowingNode(**mask);
  REQUIRE(node);
  CHECK(toString(*node, kRandomTables) == "q * k * sq");
  CHECK(overflowingNode(**parseMask("k <= q + sk - sq", kRandomTables)) == nullptr);
  // An overflow inside a float or a condition counts as well.
  CHECK(overflowingNode(**parseScore("1.0 * (q * k * sq)", kRandomTables)));
  CHECK(overflowingNode(**parseScore("where(q * k * sq < 0, 1, s)", kRandomTables)));
  CHECK_FALSE(overflowingNode(**parseScore("1.0 * q * k * sq", kRandomTables)));
}

TEST_CASE("ranges hold the values at random points") {
  int checked = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    RandomText random(seed);
    std::string text = random.integer(4) + " < 0";
    auto mask = parseMask(text, kRandomTables);
    if (!mask || (*mask)->args[0]->type != Type::Int || overflowingNode(**mask)) continue;
    IntRange bounds = *rangeOf(*(*mask)->args[0]);
    for (int i = 0; i < 50; ++i) {
      // Corners half of the time: that is where bounds break.
      auto value = [&](int64_t high) { return random.below(2) ? random.below(high + 1) : random.below(2) * high; };
      std::vector<int32_t> table(3), heads(3);
      for (int32_t &element : table)
        element = random.below(3) ? static_cast<int32_t>(random.below(1 << 30) - (1 << 29)) : INT32_MIN;
      for (int32_t &element : heads)
        element = random.below(2) ? INT32_MAX : INT32_MIN;
      std::vector<float> floats(9, 1.5f);
      // Positions of table readers are small here, all other variables free.
      bool readsTables = text.find('[') != std::string::npos;
      Point point{.q = readsTables ? value(2) : value(kLast),
                  .k = readsTables ? value(2) : value(kLast),
                  .sq = value(kMaxSequence),
                  .sk = value(kMaxSequence),
                  .h = readsTables ? value(2) : value(kMaxHeads - 1),
                  .b = readsTables ? value(2) : value(kMaxBatch - 1)};
      std::vector<TableData> data = {{nullptr, floats.data(), 3},
                                     {table.data(), nullptr, 3},
                                     {table.data(), nullptr, 3},
                                     {heads.data(), nullptr, 3}};
      double result = evaluateNumber(*(*mask)->args[0], point, data);
      CAPTURE(text);
      CHECK(result >= static_cast<double>(bounds.low));
      CHECK(result <= static_cast<double>(bounds.high));
      ++checked;
    }
  }
  CHECK(checked > 50000);
}
