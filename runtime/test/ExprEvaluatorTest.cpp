#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/expr/Evaluator.h"
#include "tilewright/expr/Parser.h"
#include <cmath>
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::expr;

namespace {

const std::vector<TableSpec> kTables = {{"doc", false, {TableAxis::Q}},
                                        {"doc", false, {TableAxis::K}},
                                        {"pos", false, {TableAxis::B, TableAxis::K}},
                                        {"slope", true, {TableAxis::H}}};
const int32_t kDoc[] = {0, 0, 1, 1, 2};
const int32_t kPos[] = {10, 11, 12, 20, 21, 22};
const float kSlope[] = {0.5f, 0.25f};
const std::vector<TableData> kData = {{kDoc, nullptr, 5}, {kDoc, nullptr, 5}, {kPos, nullptr, 3}, {nullptr, kSlope, 2}};

bool visible(std::string_view text, Point point) {
  auto parsed = parseMask(text, kTables);
  REQUIRE(parsed);
  return evaluateBool(**parsed, point, kData);
}

double number(std::string_view text, Point point) {
  auto parsed = parseScore(text, kTables);
  REQUIRE(parsed);
  return evaluateNumber(**parsed, point, kData);
}

Dual dual(std::string_view text, Point point) {
  auto parsed = parseScore(text, kTables);
  REQUIRE(parsed);
  return evaluateWithDerivative(**parsed, point, kData);
}

} // namespace

TEST_CASE("masks by hand") {
  CHECK(visible("k <= q + sk - sq", {.q = 2, .k = 5, .sq = 4, .sk = 7}));
  CHECK_FALSE(visible("k <= q + sk - sq", {.q = 2, .k = 6, .sq = 4, .sk = 7}));
  CHECK(visible("doc[q] == doc[k]", {.q = 2, .k = 3}));
  CHECK_FALSE(visible("doc[q] == doc[k]", {.q = 1, .k = 2}));
  CHECK(visible("pos[b, k] == 21", {.k = 1, .b = 1}));
  CHECK(visible("k < 2 || q == 4 && !(k == 3)", {.q = 4, .k = 2}));
  CHECK_FALSE(visible("k < 2 || q == 4 && !(k == 3)", {.q = 4, .k = 3}));
  CHECK(visible("where(q < 3, k < 3, k > 3)", {.q = 5, .k = 4}));
  CHECK(visible("true", {}));
  CHECK_FALSE(visible("false", {}));
}

TEST_CASE("// and % floor, on integers and floats") {
  // Python's results for every sign of the dividend.
  for (auto [a, quotient, remainder] : {std::tuple{7, 2, 1}, {6, 2, 0}, {-7, -3, 2}, {-6, -2, 0}, {-1, -1, 2}}) {
    CAPTURE(a);
    Point point{.q = a};
    CHECK(number("q // 3", point) == quotient);
    CHECK(number("q % 3", point) == remainder);
    CHECK(number("(1.0 * q) // 3", point) == quotient);
    CHECK(number("(1.0 * q) % 3", point) == remainder);
    CHECK(number("(1.0 * q) // -3.0", point) == std::floor(a / -3.0));
    CHECK(number("(1.0 * q) % -3.0", point) == a + 3.0 * std::floor(a / -3.0));
  }
  CHECK(number("7 / 2", {}) == 3.5);
}

TEST_CASE("functions") {
  CHECK(number("min(3, 2) + max(3, 2) * 10", {}) == 32);
  CHECK(number("abs(q - k)", {.q = 2, .k = 9}) == 7);
  CHECK(number("abs(s)", {.s = -2.5}) == 2.5);
  CHECK(number("exp(s)", {.s = 2}) == doctest::Approx(std::exp(2)).epsilon(1e-15));
  CHECK(number("log(s)", {.s = 2}) == doctest::Approx(std::log(2)).epsilon(1e-15));
  CHECK(number("tanh(s)", {.s = 2}) == doctest::Approx(std::tanh(2)).epsilon(1e-15));
  CHECK(number("s - slope[h] * abs(q - k)", {.q = 7, .k = 3, .h = 1, .s = 2}) == 1);
  CHECK(std::isnan(number("min(s, 1)", {.s = NAN})));
  CHECK(std::isnan(number("max(1, s)", {.s = NAN})));
}

TEST_CASE("where evaluates only the chosen side") {
  // The mask of a decode kernel may guard a table's end this way.
  CHECK(visible("where(k < 5, doc[k] == 2, false)", {.k = 4}));
  CHECK_FALSE(visible("k < 5 && doc[k] == 2", {.k = 1000000}));
}

TEST_CASE("derivatives agree with central differences") {
  const char *scores[] = {"s",
                          "3 * s + 1",
                          "s * s * s - 2 * s",
                          "5 * tanh(s / 5)",
                          "exp(-s * s)",
                          "log(1 + exp(s))",
                          "where(s > 0, s * 2, exp(s))",
                          "min(s * s, 3 - s)",
                          "max(s, tanh(s) + 0.5)",
                          "abs(s - 0.3) * s",
                          "1 / (2 + s * s)",
                          "(s * s) / (1 + exp(s))",
                          "s % 1.5 + s // 1.5",
                          "(7 + s) % (2 + tanh(s))",
                          "s - slope[h] * abs(q - k) * s",
                          "-s * (q - k)",
                          "q"};
  for (const char *text : scores)
    for (double s : {-2.7, -0.6, 0.1, 0.9, 2.2}) {
      CAPTURE(text);
      CAPTURE(s);
      Point point{.q = 4, .k = 2, .h = 1, .s = s};
      constexpr double kStep = 1e-5;
      Point above = point, below = point;
      above.s += kStep, below.s -= kStep;
      double difference = (number(text, above) - number(text, below)) / (2 * kStep);
      Dual result = dual(text, point);
      CHECK(result.value == number(text, point));
      CHECK(std::abs(result.derivative - difference) <= 1e-7 * std::max(1.0, std::abs(difference)));
    }
}

TEST_CASE("a constant score has derivative zero, whatever its value") {
  CHECK(dual("-3.4e38", {.s = 1}).derivative == 0);
  CHECK(dual("where(k < 128, -3.4e38, s)", {.k = 1, .s = 1}).derivative == 0);
  CHECK(dual("where(k < 128, -3.4e38, s)", {.k = 128, .s = 1}).derivative == 1);
  CHECK(dual("s + log(q)", {.q = 0, .s = 1}).derivative == 1);
}
