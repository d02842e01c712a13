#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "ExprRandomTree.h"
#include <bit>
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::expr;

namespace {

/// Equal in everything but positions in the text.
bool equal(const Expr &a, const Expr &b) {
  if (a.op != b.op || a.type != b.type || a.args.size() != b.args.size()) return false;
  if (a.intValue != b.intValue || std::bit_cast<uint64_t>(a.floatValue) != std::bit_cast<uint64_t>(b.floatValue))
    return false;
  if (a.variable != b.variable || a.table != b.table || a.axes != b.axes) return false;
  for (size_t i = 0; i < a.args.size(); ++i)
    if (!equal(*a.args[i], *b.args[i])) return false;
  return true;
}

/// Every promotion is visible in the types: operands of arithmetic and comparisons agree.
bool wellTyped(const Expr &expr) {
  bool ok = true;
  walk(expr, [&](const Expr &node) {
    switch (node.op) {
    case Op::ToFloat:
      ok &= node.type == Type::Float && node.args[0]->type == Type::Int;
      break;
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::FloorDiv:
    case Op::Mod:
    case Op::Min:
    case Op::Max:
      ok &= node.args[0]->type == node.type && node.args[1]->type == node.type;
      break;
    case Op::Div:
      ok &= node.args[0]->type == Type::Float && node.args[1]->type == Type::Float;
      break;
    case Op::Where:
      ok &= node.args[0]->type == Type::Bool && node.args[1]->type == node.type && node.args[2]->type == node.type;
      break;
    case Op::Lt:
    case Op::Le:
    case Op::Gt:
    case Op::Ge:
    case Op::Eq:
    case Op::Ne:
      ok &= node.type == Type::Bool && node.args[0]->type == node.args[1]->type && node.args[0]->type != Type::Bool;
      break;
    default:
      break;
    }
  });
  return ok;
}

} // namespace

TEST_CASE("canonical text reads back as the same tree, and is its own canonical text") {
  int parsedCount = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    RandomText random(seed);
    bool isMask = seed % 2 == 0;
    // A random mask may well say s, or divide by a zero; what is refused is not counted.
    std::string text = isMask ? random.boolean(4) : random.number(4);
    auto parse = isMask ? parseMask : parseScore;
    auto tree = parse(text, kRandomTables);
    if (!tree) continue;
    ++parsedCount;
    CAPTURE(text);
    std::string canonical = toString(**tree, kRandomTables);
    CAPTURE(canonical);
    auto again = parse(canonical, kRandomTables);
    REQUIRE(again);
    CHECK(equal(**tree, **again));
    CHECK(toString(**again, kRandomTables) == canonical);
    CHECK(wellTyped(**tree));
  }
  CHECK(parsedCount > 1500);
}

TEST_CASE("spacing, redundant parentheses and word operators do not matter") {
  auto text = [](std::string_view source) { return toString(**parseMask(source, kRandomTables), kRandomTables); };
  CHECK(text("k<=q and not(k<3)") == text("  (k <= q) && !( (k) < (3) )"));
  CHECK(text("k < 1 or k < 2") == text("k<1||k<2"));
  CHECK(text("1.50 * k < 3") == text("1.5*k<3.0"));
}

TEST_CASE("substitution replaces every occurrence and nothing else") {
  auto score = parseScore("s * where(s > q, s, 1)", kRandomTables);
  auto inner = parseScore("tanh(s)", kRandomTables);
  ExprPtr replaced = substitute(*score, Variable::S, *inner);
  CHECK(toString(*replaced, kRandomTables) == "tanh(s) * where(tanh(s) > q, tanh(s), 1.0)");
  CHECK(toString(**score, kRandomTables) == "s * where(s > q, s, 1.0)");
  CHECK(substitute(*score, Variable::H, *inner) == *score);
}
