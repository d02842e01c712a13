#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/expr/Parser.h"
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::expr;

namespace {

const std::vector<TableSpec> kTables = {
    {"bias", true, {TableAxis::B, TableAxis::K}},
    {"doc", false, {TableAxis::Q}},
    {"doc", false, {TableAxis::K}},
    {"slope", true, {TableAxis::H}},
};

std::string mask(std::string_view text) {
  auto parsed = parseMask(text, kTables);
  return parsed ? toString(**parsed, kTables) : parsed.error().text();
}

std::string score(std::string_view text) {
  auto parsed = parseScore(text, kTables);
  return parsed ? toString(**parsed, kTables) : parsed.error().text();
}

bool contains(const std::string &text, std::string_view piece) { return text.find(piece) != std::string::npos; }

/// The column that an error message names, from 1.
int columnOf(const std::string &text) {
  size_t at = text.find("at column ");
  return at == std::string::npos ? -1 : std::stoi(text.substr(at + 10));
}

} // namespace

TEST_CASE("the documented examples parse to canonical text") {
  CHECK(mask("k<=q+sk-sq") == "k <= q + sk - sq");
  CHECK(mask("q - k < 1024") == "q - k < 1024");
  CHECK(mask("k < 100 || k <= q") == "k < 100 || k <= q");
  CHECK(mask("doc[q]==doc[k]") == "doc[q] == doc[k]");
  CHECK(score("5*tanh(s/5)") == "5.0 * tanh(s / 5.0)");
  CHECK(score("s - slope[ h ] * abs(q-k)") == "s - slope[h] * abs(q - k)");
  CHECK(score("s + bias[b,k]") == "s + bias[b, k]");
  CHECK(score("where(q%3==0, -3.4e38, s)") == "where(q % 3 == 0, -3.4e+38, s)");
}

TEST_CASE("precedence and associativity follow the grammar") {
  CHECK(mask("k < 1 || k < 2 && k < 3") == "k < 1 || k < 2 && k < 3");
  CHECK(mask("(k < 1 || k < 2) && k < 3") == "(k < 1 || k < 2) && k < 3");
  CHECK(mask("k < 1 || (k < 2 && k < 3)") == "k < 1 || k < 2 && k < 3");
  CHECK(mask("not k < 1 and k < 2") == "!(k < 1) && k < 2");
  CHECK(mask("!!(k < 1)") == "!!(k < 1)");
  CHECK(mask("q - k - 1 < 0") == "q - k - 1 < 0");
  CHECK(mask("q - (k - 1) < 0") == "q - (k - 1) < 0");
  CHECK(mask("(q - k) - 1 < 0") == "q - k - 1 < 0");
  CHECK(mask("q * (k + 1) // 2 % 3 < 1") == "q * (k + 1) // 2 % 3 < 1");
  CHECK(mask("-q * 2 < k") == "-q * 2 < k");
  CHECK(mask("-(q * 2) < k") == "-(q * 2) < k");
  CHECK(mask("--q < k") == "--q < k");
  CHECK(mask("((((k)))) < ((q))") == "k < q");
  CHECK(mask("k < 1 and k < 2 or not k < 3") == "k < 1 && k < 2 || !(k < 3)");
}

TEST_CASE("types are promoted where one side is a float") {
  CHECK(score("q") == "q");
  CHECK(score("2") == "2.0");
  CHECK(score("2 * s") == "2.0 * s");
  CHECK(score("q / 2") == "q / 2.0");
  CHECK(score("q // 2") == "q // 2");
  CHECK(score("q // 2.0") == "q // 2.0");
  CHECK(score("where(k < 3, 1, s)") == "where(k < 3, 1.0, s)");
  CHECK(score("min(q, 3)") == "min(q, 3)");
  CHECK(score("max(q, 3.0)") == "max(q, 3.0)");
  CHECK(score("tanh(1)") == "tanh(1.0)");
  auto parsed = parseScore("s + q", kTables);
  REQUIRE(parsed);
  CHECK(((*parsed)->type == Type::Float));
  CHECK(((*parsed)->args[1]->op == Op::ToFloat));
  CHECK(((*parsed)->args[1]->type == Type::Float));
  auto integer = parseScore("q", kTables);
  REQUIRE(integer);
  CHECK(((*integer)->op == Op::ToFloat));
}

TEST_CASE("numbers") {
  CHECK(mask("k < 9223372036854775807") == "k < 9223372036854775807");
  CHECK(columnOf(mask("k < 9223372036854775808")) == 5);
  CHECK(score("1.") == "1.0");
  CHECK(score(".5") == "0.5");
  CHECK(score("1e3") == "1000.0");
  CHECK(score("1E-3") == "0.001");
  CHECK(score("0.1") == "0.1");
  CHECK(score("1e-40") == "1e-40");
  CHECK(columnOf(score("1e-400")) == 1);
  CHECK(score("-0.0") == "-0.0");
  CHECK(score("- 5") == "-5.0");
  CHECK(score("3.4028234e38") == "3.4028234e+38");
  CHECK(contains(score("1e39"), "fp32"));
  CHECK(contains(score("1e999"), "fp32"));
  CHECK(columnOf(score("1e")) == 1);
  CHECK(columnOf(score("1e+")) == 1);
  CHECK(columnOf(score("2q")) == 2);
  CHECK(columnOf(score("1.5.2")) == 4);
}

TEST_CASE("true and false are masks") {
  CHECK(mask("true") == "true");
  CHECK(mask("false || k < q") == "false || k < q");
}

TEST_CASE("syntax errors name what was expected and show the place") {
  CHECK(mask("k <= q +") == "input: mask: expected a number, a variable, a table, a function or '(', found the end of "
                            "the text at column 9\n  k <= q +\n          ^");
  CHECK(contains(mask(""), "empty"));
  CHECK(contains(mask("   "), "empty"));
  CHECK(columnOf(mask("k <= (q")) == 8);
  CHECK(columnOf(mask("k <= q)")) == 7);
  CHECK(columnOf(mask("k <= q q")) == 8);
  CHECK(columnOf(mask("k = q")) == 3);
  CHECK(contains(mask("k = q"), "write =="));
  CHECK(contains(mask("k < q & k < 3"), "write &&"));
  CHECK(contains(mask("k < q | k < 3"), "write ||"));
  CHECK(contains(score("s ^ 2"), "x * x"));
  CHECK(contains(mask("k \xe2\x89\xa4 q"), "byte 0xe2"));
  CHECK_FALSE(contains(mask("k \xe2\x89\xa4 q"), "\xe2"));
  CHECK(columnOf(mask("1 < k < 5")) == 7);
  CHECK(contains(mask("1 < k < 5"), "a < b && b < c"));
  CHECK(columnOf(mask("k < 1 + !q")) == 9);
}

TEST_CASE("names are checked") {
  CHECK(columnOf(mask("k <= prefix")) == 6);
  CHECK(contains(mask("k <= prefix"), "unknown name 'prefix'"));
  CHECK(contains(mask("s > 0"), "cannot read the score"));
  CHECK(contains(mask("doc == 1"), "needs a subscript"));
  CHECK(contains(score("min"), "'('"));
  CHECK(contains(score("sqrt(s)"), "unknown name 'sqrt'"));
  CHECK(columnOf(score("min(s)")) == 1);
  CHECK(contains(score("min(s)"), "takes 2 arguments, found 1"));
  CHECK(contains(score("abs(s, s)"), "takes 1 argument, found 2"));
  CHECK(contains(score("where(k < 1, s)"), "takes 3 arguments, found 2"));
  CHECK(columnOf(score("abs()")) == 5);
}

TEST_CASE("tables are read by the axes they are given with") {
  CHECK(contains(mask("seg[k] == 1"), "no table named seg"));
  CHECK(contains(mask("slope[k] > 1"), "is given as slope[h], but read here as slope[k]"));
  CHECK(columnOf(mask("doc[k+1] == 1")) == 6);
  CHECK(columnOf(mask("doc[3] == 1")) == 5);
  CHECK(columnOf(mask("doc[] == 1")) == 5);
  CHECK(contains(mask("doc[q, k] == 1"), "doc[q, k] cannot be read"));
  CHECK(contains(mask("doc[b, b] == 1"), "cannot be read"));
  CHECK(columnOf(mask("doc[k == 1")) == 7);
  auto parsed = parseMask("doc[k] == doc[q]", kTables);
  REQUIRE(parsed);
  CHECK((*parsed)->args[0]->table == 2);
  CHECK((*parsed)->args[1]->table == 1);
  CHECK((*parsed)->args[0]->axes == std::vector{TableAxis::K});
}

TEST_CASE("type errors point at the operand") {
  CHECK(columnOf(mask("q")) == 1);
  CHECK(contains(mask("q + 1"), "a mask is a boolean, found an integer"));
  CHECK(contains(score("k < q"), "a score is a number, found a boolean"));
  CHECK(columnOf(mask("(k < 1) == (q < 1)")) == 4);
  CHECK(columnOf(mask("k && q < 1")) == 1);
  CHECK(columnOf(mask("!k")) == 2);
  CHECK(columnOf(score("s + (k < 1)")) == 8);
  CHECK(columnOf(score("-(k < 1)")) == 5);
  CHECK(columnOf(score("where(k, s, s)")) == 7);
  CHECK(columnOf(score("where(k < 1, s, k < 1)")) == 19);
  CHECK(columnOf(score("exp(k < 1)")) == 7);
  CHECK(contains(mask("where(k < 1, k < 2, k < 3)"), "where(k < 1, k < 2, k < 3)"));
}

TEST_CASE("division by zero and by unknown integers is refused") {
  CHECK(columnOf(mask("k % 0 == 1")) == 5);
  CHECK(columnOf(mask("k // 0 == 1")) == 6);
  CHECK(columnOf(score("s / 0")) == 5);
  CHECK(columnOf(score("s // 0.0")) == 6);
  CHECK(columnOf(score("s % 1e-60")) == 5);
  CHECK(contains(mask("k % sk == 1"), "positive integer literal"));
  CHECK(contains(mask("k // -2 == 1"), "positive integer literal"));
  CHECK(contains(mask("k % (1 + 1) == 1"), "positive integer literal"));
  CHECK(mask("k % (1.0 * sk) == 1") == "k % (1.0 * sk) == 1.0");
}

TEST_CASE("hostile texts are refused without using up the stack") {
  std::string deep = std::string(2000, '(') + "q" + std::string(2000, ')') + " < k";
  CHECK(contains(mask(deep), "nested deeper than 100 levels"));
  CHECK(contains(mask(std::string(3000, '!') + "(k < q)"), "nested deeper"));
  CHECK(contains(mask(std::string(3000, '-') + "q < k"), "nested deeper"));
  std::string calls;
  for (int i = 0; i < 900; ++i)
    calls += "abs(";
  CHECK(contains(mask(calls), "nested deeper"));
  CHECK(contains(mask(std::string(4097, ' ')), "at most 4096"));
  std::string flat = "q";
  while (flat.size() < 4000)
    flat += "+q";
  CHECK_FALSE(contains(mask(flat + "<k"), "input"));
  std::string right90 = std::string(90, '(') + "q" + std::string(90, ')') + " < k";
  CHECK(mask(right90) == "q < k");
  // The excerpt of a long text stays short.
  std::string error = mask(flat + " ?");
  CHECK(error.size() < 300);
  CHECK(contains(error, "..."));
}

TEST_CASE("tables of an expression are found before their types are known") {
  auto tables = tablesOf("doc[q] == doc[k] && k < len[b] && pos[b, k] > slope[h] // 1 && doc[k] > 0");
  REQUIRE(tables);
  REQUIRE(tables->size() == 5);
  CHECK((*tables)[0] == TableSpec{"doc", false, {TableAxis::Q}});
  CHECK((*tables)[1] == TableSpec{"doc", false, {TableAxis::K}});
  CHECK((*tables)[2] == TableSpec{"len", false, {TableAxis::B}});
  CHECK((*tables)[3] == TableSpec{"pos", false, {TableAxis::B, TableAxis::K}});
  CHECK((*tables)[4] == TableSpec{"slope", false, {TableAxis::H}});
  CHECK(tablesOf("k <= q")->empty());
  CHECK_FALSE(tablesOf("doc["));
  CHECK_FALSE(tablesOf("doc[q"));
  CHECK_FALSE(tablesOf("doc[q,"));
  CHECK_FALSE(tablesOf("doc[q q]"));
  CHECK_FALSE(tablesOf("doc[q, k]"));
  CHECK_FALSE(tablesOf("q[k]"));
  CHECK_FALSE(tablesOf("k <= $"));
}
