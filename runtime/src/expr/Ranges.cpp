#include "tilewright/expr/Evaluator.h"
#include <algorithm>
#include <initializer_list>

namespace tilewright::expr {

namespace {

using Maybe = std::optional<IntRange>;

IntRange rangeOfVariable(Variable variable) {
  switch (variable) {
  case Variable::Q:
  case Variable::K:
    return {0, kMaxSequence - 1};
  case Variable::SQ:
  case Variable::SK:
    return {0, kMaxSequence};
  case Variable::H:
    return {0, kMaxHeads - 1};
  case Variable::B:
    return {0, kMaxBatch - 1};
  case Variable::S:
    break;
  }
  return {};
}

IntRange hull(IntRange a, IntRange b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

Maybe add(IntRange a, IntRange b) {
  IntRange sum;
  if (__builtin_add_overflow(a.low, b.low, &sum.low) || __builtin_add_overflow(a.high, b.high, &sum.high)) return {};
  return sum;
}

Maybe subtract(IntRange a, IntRange b) {
  IntRange difference;
  if (__builtin_sub_overflow(a.low, b.high, &difference.low) || __builtin_sub_overflow(a.high, b.low, &difference.high))
    return {};
  return difference;
}

Maybe multiply(IntRange a, IntRange b) {
  IntRange product{INT64_MAX, INT64_MIN};
  for (int64_t x : {a.low, a.high})
    for (int64_t y : {b.low, b.high}) {
      int64_t corner;
      if (__builtin_mul_overflow(x, y, &corner)) return {};
      product = hull(product, {corner, corner});
    }
  return product;
}

int64_t floorDiv(int64_t a, int64_t positive) {
  int64_t quotient = a / positive;
  return a % positive < 0 ? quotient - 1 : quotient;
}

Maybe absolute(IntRange a) {
  if (a.low >= 0) return a;
  Maybe negated = subtract({0, 0}, a);
  if (!negated || a.high <= 0) return negated;
  return IntRange{0, std::max(a.high, negated->high)};
}

/// The range of one node from those of its Int arguments.
Maybe combine(const Expr &expr, IntRange a, IntRange b) {
  switch (expr.op) {
  case Op::Neg:
    return subtract({0, 0}, a);
  case Op::Add:
    return add(a, b);
  case Op::Sub:
    return subtract(a, b);
  case Op::Mul:
    return multiply(a, b);
  // The typing rules admit only positive literals as integer divisors.
  case Op::FloorDiv:
    return IntRange{floorDiv(a.low, b.low), floorDiv(a.high, b.low)};
  case Op::Mod:
    // Within one period the remainder is the value less a constant.
    if (int64_t period = floorDiv(a.low, b.low); period == floorDiv(a.high, b.low))
      return IntRange{a.low - period * b.low, a.high - period * b.low};
    return IntRange{0, b.low - 1};
  case Op::Min:
    return IntRange{std::min(a.low, b.low), std::min(a.high, b.high)};
  case Op::Max:
    return IntRange{std::max(a.low, b.low), std::max(a.high, b.high)};
  case Op::Abs:
    return absolute(a);
  case Op::Where:
    return hull(a, b);
  default:
    return {};
  }
}

/// Computes ranges bottom-up and remembers the first node that may overflow.
struct Analysis {
  const Expr *overflowing = nullptr;

  Maybe of(const Expr &expr) {
    if (expr.type == Type::Int) {
      if (expr.op == Op::Literal) return IntRange{expr.intValue, expr.intValue};
      if (expr.op == Op::Variable) return rangeOfVariable(expr.variable);
      if (expr.op == Op::Table) return IntRange{INT32_MIN, INT32_MAX};
    }
    IntRange operands[3];
    bool known = true;
    for (size_t i = 0; i < expr.args.size(); ++i) {
      Maybe range = of(*expr.args[i]);
      if (range)
        operands[i] = *range;
      else if (expr.args[i]->type == Type::Int)
        known = false;
    }
    if (expr.type == Type::Bool) return IntRange{0, 1};
    if (expr.type == Type::Float || !known) return {};
    size_t first = expr.op == Op::Where ? 1 : 0;
    Maybe result = combine(expr, operands[first], operands[first + 1]);
    if (!result && !overflowing) overflowing = &expr;
    return result;
  }
};

} // namespace

std::optional<IntRange> rangeOf(const Expr &expr) {
  Analysis analysis;
  auto range = analysis.of(expr);
  if (analysis.overflowing) return {};
  return range;
}

const Expr *overflowingNode(const Expr &expr) {
  Analysis analysis;
  analysis.of(expr);
  return analysis.overflowing;
}

} // namespace tilewright::expr
