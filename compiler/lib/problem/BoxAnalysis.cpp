#include "BoxAnalysis.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"
#include "tilewright/plan/Problem.h"
#include <algorithm>
#include <cmath>

using namespace mlir;

namespace tilewright {

namespace {

constexpr double kTableMagnitude = 2147483648.0; ///< Of an int32.
constexpr int64_t kSaturation = int64_t{1} << 30;
constexpr double kSpare = 4; ///< Ends of ranges are one further.

/// One number as it is, or none: nothing is added up.
bool isPlain(const LinearForm &form) {
  return form.constant == 0 && (form.terms.empty() || (form.terms.size() == 1 && form.terms.front().second == 1));
}

bool isTableElement(Value atom) {
  if (auto extended = atom.getDefiningOp<arith::ExtSIOp>()) atom = extended.getIn();
  return atom.getDefiningOp<tw::ReadTableOp>() != nullptr;
}

} // namespace

LinearForm &LinearForm::addTerm(Value atom, int64_t coefficient) {
  int64_t &sum = terms[atom];
  overflowed |= __builtin_add_overflow(sum, coefficient, &sum);
  if (sum == 0) terms.erase(atom);
  return *this;
}

LinearForm &LinearForm::addConstant(int64_t value) {
  overflowed |= __builtin_add_overflow(constant, value, &constant);
  return *this;
}

LinearForm &LinearForm::add(const LinearForm &other, int64_t factor) {
  overflowed |= other.overflowed;
  auto times = [&](int64_t value) {
    int64_t product = 0;
    overflowed |= __builtin_mul_overflow(value, factor, &product);
    return product;
  };
  for (auto &[atom, coefficient] : other.terms)
    addTerm(atom, times(coefficient));
  return addConstant(times(other.constant));
}

std::optional<int64_t> constantOf(Value value) {
  APInt bits;
  if (!matchPattern(value, m_ConstantInt(&bits))) return std::nullopt;
  return value.getType().isInteger(1) ? bits.getZExtValue() : bits.getSExtValue();
}

BoxAnalysis::BoxAnalysis(ImplicitLocOpBuilder &builder, Block &mask, Type type, ArrayRef<Interval> arguments)
    : builder(builder), mask(mask), type(type), arguments(arguments) {}

bool BoxAnalysis::dependsOn(Value number, unsigned argument) {
  if (auto blockArgument = dyn_cast<BlockArgument>(number)) return blockArgument.getArgNumber() == argument;
  return llvm::any_of(number.getDefiningOp()->getOperands(), [&](Value v) { return dependsOn(v, argument); });
}

bool BoxAnalysis::dependsOn(const LinearForm &form, unsigned argument) {
  return llvm::any_of(form.terms, [&](auto &term) { return dependsOn(term.first, argument); });
}

//===--- Numbers ------------------------------------------------------------------------------------------------===//

LinearForm BoxAnalysis::linear(Value number) {
  LinearForm form;
  if (std::optional<int64_t> value = constantOf(number)) {
    form.constant = *value;
    return form;
  }
  Operation *op = number.getDefiningOp();
  if (auto sum = dyn_cast_or_null<arith::AddIOp>(op))
    return form.add(linear(sum.getLhs()), 1).add(linear(sum.getRhs()), 1);
  if (auto difference = dyn_cast_or_null<arith::SubIOp>(op))
    return form.add(linear(difference.getLhs()), 1).add(linear(difference.getRhs()), -1);
  if (auto multiple = dyn_cast_or_null<arith::MulIOp>(op)) {
    if (std::optional<int64_t> factor = constantOf(multiple.getRhs()))
      return form.add(linear(multiple.getLhs()), *factor);
    if (std::optional<int64_t> factor = constantOf(multiple.getLhs()))
      return form.add(linear(multiple.getRhs()), *factor);
  }
  return form.addTerm(number, 1);
}

/// What the number can be at most, as far as its shape tells. Values of the mask's own operations fit into its type.
BoxAnalysis::Range BoxAnalysis::range(Value number) {
  if (std::optional<int64_t> value = constantOf(number))
    return {static_cast<double>(*value), static_cast<double>(*value)};
  Operation *op = number.getDefiningOp();
  if (!op) return {0, static_cast<double>(kMaxSequence)}; // a position, a length, a head, a batch entry
  auto operand = [&](unsigned i) { return range(op->getOperand(i)); };
  if (isa<arith::ExtSIOp>(op)) return operand(0);
  if (isa<tw::FloorModOp>(op)) return {0, operand(1).high - 1};
  if (isa<arith::FloorDivSIOp>(op)) {
    const double divisor = operand(1).low;
    return {std::floor(operand(0).low / divisor), std::floor(operand(0).high / divisor)};
  }
  if (isa<math::AbsIOp>(op)) return {0, std::max(-operand(0).low, operand(0).high)};
  if (!isa<arith::MinSIOp, arith::MaxSIOp, arith::AddIOp, arith::SubIOp, arith::MulIOp, arith::SelectOp>(op))
    return {-kTableMagnitude, kTableMagnitude};
  const unsigned first = isa<arith::SelectOp>(op) ? 1 : 0;
  const Range a = operand(first), b = operand(first + 1);
  if (isa<arith::MinSIOp>(op)) return {std::min(a.low, b.low), std::min(a.high, b.high)};
  if (isa<arith::MaxSIOp>(op)) return {std::max(a.low, b.low), std::max(a.high, b.high)};
  if (isa<arith::AddIOp>(op)) return {a.low + b.low, a.high + b.high};
  if (isa<arith::SubIOp>(op)) return {a.low - b.high, a.high - b.low};
  if (isa<arith::SelectOp>(op)) return {std::min(a.low, b.low), std::max(a.high, b.high)};
  const auto [low, high] = std::minmax({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
  return {low, high};
}

/// The largest absolute value of the form and of the sums of some of its terms.
double BoxAnalysis::magnitude(const LinearForm &form) {
  double positive = 0, negative = 0;
  auto count = [&](double low, double high) {
    positive += std::max(high, 0.0);
    negative += std::max(-low, 0.0);
  };
  count(static_cast<double>(form.constant), static_cast<double>(form.constant));
  for (auto &[atom, coefficient] : form.terms) {
    const Range of = range(atom);
    const double factor = static_cast<double>(coefficient);
    count(std::min(factor * of.low, factor * of.high), std::max(factor * of.low, factor * of.high));
  }
  return std::max(positive, negative);
}

bool BoxAnalysis::fits(const LinearForm &form) {
  return !form.overflowed && magnitude(form) < std::ldexp(1.0, type.isInteger(32) ? 31 : 62) - kSpare;
}

bool BoxAnalysis::isSaturable(const LinearForm &form) {
  if (form.overflowed) return false;
  int tables = 0;
  LinearForm others = form;
  for (auto &[atom, coefficient] : form.terms)
    if (isTableElement(atom)) {
      if (std::abs(coefficient) != 1) return false;
      others.addTerm(atom, -coefficient);
      ++tables;
    }
  return tables == 1 && magnitude(others) < static_cast<double>(kSaturation) - kSpare;
}

Interval BoxAnalysis::interval(const LinearForm &form, bool saturated) {
  Interval sum{constant(form.constant), constant(form.constant)};
  for (auto &[atom, coefficient] : form.terms) {
    Interval range = intervalOfAtom(atom);
    if (saturated && isTableElement(atom)) {
      auto cutOff = [&](Value v) { return min(max(v, constant(-kSaturation)), constant(kSaturation)); };
      range = {cutOff(range.min), cutOff(range.max)};
    }
    if (coefficient < 0) std::swap(range.min, range.max);
    sum.min = add(sum.min, scale(range.min, coefficient));
    sum.max = add(sum.max, scale(range.max, coefficient));
  }
  return sum;
}

Interval BoxAnalysis::product(Value a, Value b) {
  Interval x = interval(linear(a)), y = interval(linear(b));
  Value corners[] = {arith::MulIOp::create(builder, x.min, y.min), arith::MulIOp::create(builder, x.min, y.max),
                     arith::MulIOp::create(builder, x.max, y.min), arith::MulIOp::create(builder, x.max, y.max)};
  return {min(min(corners[0], corners[1]), min(corners[2], corners[3])),
          max(max(corners[0], corners[1]), max(corners[2], corners[3]))};
}

Interval BoxAnalysis::tableInterval(Operation *op) {
  auto read = cast<tw::ReadTableOp>(op);
  unsigned last = cast<BlockArgument>(read.getIndices().back()).getArgNumber();
  Interval positions = arguments[last];
  Value batch;
  if (read.getIndices().size() == 2)
    batch = arguments[cast<BlockArgument>(read.getIndices().front()).getArgNumber()].min;
  if (positions.min == positions.max) { // one element: a head or a batch entry
    SmallVector<Value, 2> indices;
    if (batch) indices.push_back(batch);
    indices.push_back(positions.min);
    Value element = tw::ReadTableOp::create(builder, builder.getI32Type(), read.getName(), read.getTable(), indices);
    return {element, element};
  }
  Type element = builder.getI32Type();
  auto bounds = tw::TableBoundsOp::create(builder, TypeRange{element, element}, read.getNameAttr(), read.getTableAttr(),
                                          batch, positions.min, positions.max);
  return {bounds.getMin(), bounds.getMax()};
}

Interval BoxAnalysis::intervalOfAtom(Value atom) {
  if (auto argument = dyn_cast<BlockArgument>(atom)) return arguments[argument.getArgNumber()];
  auto cached = known.find(atom);
  if (cached != known.end()) return cached->second;

  Operation *op = atom.getDefiningOp();
  auto operand = [&](unsigned i) { return interval(linear(op->getOperand(i))); };
  Interval result;
  if (isa<arith::FloorDivSIOp>(op)) {
    int64_t divisor = *constantOf(op->getOperand(1));
    Interval x = operand(0);
    result = {floorDiv(x.min, divisor), floorDiv(x.max, divisor)};
  } else if (isa<tw::FloorModOp>(op)) {
    // Within one period the remainder is x - m floor(x / m); across a period's end it takes all values.
    int64_t modulus = *constantOf(op->getOperand(1));
    Interval x = operand(0);
    Value first = floorDiv(x.min, modulus), last = floorDiv(x.max, modulus);
    Value onePeriod = arith::CmpIOp::create(builder, arith::CmpIPredicate::eq, first, last);
    Value base = scale(first, modulus);
    result = {select(onePeriod, sub(x.min, base), constant(0)),
              select(onePeriod, sub(x.max, base), constant(modulus - 1))};
  } else if (isa<arith::MinSIOp>(op)) {
    Interval x = operand(0), y = operand(1);
    result = {min(x.min, y.min), min(x.max, y.max)};
  } else if (isa<arith::MaxSIOp>(op)) {
    Interval x = operand(0), y = operand(1);
    result = {max(x.min, y.min), max(x.max, y.max)};
  } else if (isa<math::AbsIOp>(op)) {
    Interval x = operand(0);
    Value negatedMax = scale(x.max, -1), negatedMin = scale(x.min, -1);
    result = {max(constant(0), max(x.min, negatedMax)), max(x.max, negatedMin)};
  } else if (isa<arith::SelectOp>(op)) {
    Interval x = operand(1), y = operand(2);
    result = {min(x.min, y.min), max(x.max, y.max)};
  } else if (isa<arith::MulIOp>(op)) {
    result = product(op->getOperand(0), op->getOperand(1));
  } else if (auto extend = dyn_cast<arith::ExtSIOp>(op)) {
    Interval narrow = intervalOfAtom(extend.getIn());
    result = {arith::ExtSIOp::create(builder, type, narrow.min), arith::ExtSIOp::create(builder, type, narrow.max)};
  } else {
    result = tableInterval(op);
  }
  known[atom] = result;
  return result;
}

//===--- Booleans -----------------------------------------------------------------------------------------------===//

std::optional<Comparison> BoxAnalysis::comparison(Value condition, bool negated) {
  auto compare = condition.getDefiningOp<arith::CmpIOp>();
  if (!compare || compare.getLhs().getType().isInteger(1)) return std::nullopt;
  arith::CmpIPredicate predicate = compare.getPredicate();
  if (negated) predicate = arith::invertPredicate(predicate);
  LinearForm form = linear(compare.getLhs());
  form.add(linear(compare.getRhs()), -1); // lhs - rhs
  LinearForm opposite;
  opposite.add(form, -1);
  switch (predicate) {
  case arith::CmpIPredicate::sle:
    return Comparison{form, Relation::AtMostZero};
  case arith::CmpIPredicate::slt:
    form.addConstant(1);
    return Comparison{form, Relation::AtMostZero};
  case arith::CmpIPredicate::sge:
    return Comparison{opposite, Relation::AtMostZero};
  case arith::CmpIPredicate::sgt:
    opposite.addConstant(1);
    return Comparison{opposite, Relation::AtMostZero};
  case arith::CmpIPredicate::eq:
    return Comparison{form, Relation::EqualsZero};
  case arith::CmpIPredicate::ne:
    return Comparison{form, Relation::DiffersFromZero};
  default:
    return std::nullopt;
  }
}

Verdict BoxAnalysis::verdict(const Comparison &comparison) {
  const Verdict unknown{constantBool(true), constantBool(false)};
  if (comparison.form.overflowed) return unknown;
  // Positive and negative terms are compared as two sums, so that the difference of two table elements (any int32)
  // is never formed.
  LinearForm left, right;
  for (auto &[atom, coefficient] : comparison.form.terms)
    coefficient > 0 ? left.addTerm(atom, coefficient) : right.add(LinearForm().addTerm(atom, coefficient), -1);
  // "l + 1 <= r" is asked as "l < r" for the same reason.
  bool strict = comparison.relation == Relation::AtMostZero && comparison.form.constant == 1;
  if (!strict)
    comparison.form.constant > 0 ? left.addConstant(comparison.form.constant)
                                 : right.add(LinearForm().addConstant(comparison.form.constant), -1);
  const bool saturated = !(isPlain(left) || fits(left)) || !(isPlain(right) || fits(right));
  if (saturated && !isSaturable(comparison.form)) return unknown;
  Interval l = interval(left, saturated), r = interval(right, saturated);
  if (strict) return {less(l.min, r.max), less(l.max, r.min)};
  if (comparison.relation == Relation::AtMostZero) return {atMost(l.min, r.max), atMost(l.max, r.min)};
  Value mayBeEqual = both(atMost(l.min, r.max), atMost(r.min, l.max));
  Value mustBeEqual = both(atMost(l.max, r.min), atMost(r.max, l.min));
  if (comparison.relation == Relation::EqualsZero) return {mayBeEqual, mustBeEqual};
  Value yes = constantBool(true);
  return {arith::XOrIOp::create(builder, mustBeEqual, yes), arith::XOrIOp::create(builder, mayBeEqual, yes)};
}

Verdict BoxAnalysis::verdict(Value condition, bool negated) {
  if (std::optional<int64_t> value = constantOf(condition)) {
    Value truth = constantBool((*value != 0) != negated);
    return {truth, truth};
  }
  if (std::optional<Comparison> standard = comparison(condition, negated)) return verdict(*standard);
  Operation *op = condition.getDefiningOp();
  if (op && isa<arith::AndIOp, arith::OrIOp>(op)) {
    Verdict a = verdict(op->getOperand(0), negated), b = verdict(op->getOperand(1), negated);
    if (isa<arith::AndIOp>(op) != negated) return {both(a.possible, b.possible), both(a.certain, b.certain)};
    return {either(a.possible, b.possible), either(a.certain, b.certain)};
  }
  if (auto flip = dyn_cast_or_null<arith::XOrIOp>(op)) return verdict(flip.getLhs(), !negated); // `!` is x ^ true
  if (auto choice = dyn_cast_or_null<arith::SelectOp>(op)) {
    Verdict when = verdict(choice.getCondition());
    Verdict a = verdict(choice.getTrueValue(), negated), b = verdict(choice.getFalseValue(), negated);
    Value yes = constantBool(true);
    Value otherwise = arith::XOrIOp::create(builder, when.certain, yes);
    Value never = arith::XOrIOp::create(builder, when.possible, yes);
    return {either(both(when.possible, a.possible), both(otherwise, b.possible)),
            either(both(a.certain, b.certain), either(both(when.certain, a.certain), both(never, b.certain)))};
  }
  return {constantBool(true), constantBool(false)}; // floating point: could be anything
}

//===--- Building -----------------------------------------------------------------------------------------------===//

Value BoxAnalysis::constant(int64_t value) {
  return arith::ConstantOp::create(builder, builder.getIntegerAttr(type, value));
}
Value BoxAnalysis::constantBool(bool value) { return arith::ConstantIntOp::create(builder, value, 1); }
Value BoxAnalysis::add(Value a, Value b) { return builder.createOrFold<arith::AddIOp>(a, b); }
Value BoxAnalysis::sub(Value a, Value b) { return builder.createOrFold<arith::SubIOp>(a, b); }
Value BoxAnalysis::scale(Value a, int64_t factor) {
  if (factor == -1) return sub(constant(0), a);
  if (a.getType() != type) a = arith::ExtSIOp::create(builder, type, a);
  return builder.createOrFold<arith::MulIOp>(a, constant(factor));
}
Value BoxAnalysis::min(Value a, Value b) { return a == b ? a : builder.createOrFold<arith::MinSIOp>(a, b); }
Value BoxAnalysis::max(Value a, Value b) { return a == b ? a : builder.createOrFold<arith::MaxSIOp>(a, b); }
Value BoxAnalysis::floorDiv(Value a, int64_t divisor) {
  return builder.createOrFold<arith::FloorDivSIOp>(a, constant(divisor));
}
Value BoxAnalysis::both(Value a, Value b) { return builder.createOrFold<arith::AndIOp>(a, b); }
Value BoxAnalysis::either(Value a, Value b) { return builder.createOrFold<arith::OrIOp>(a, b); }
Value BoxAnalysis::select(Value condition, Value a, Value b) {
  return a == b ? a : builder.createOrFold<arith::SelectOp>(condition, a, b);
}
Value BoxAnalysis::atMost(Value a, Value b) {
  return builder.createOrFold<arith::CmpIOp>(arith::CmpIPredicate::sle, a, b);
}

Value BoxAnalysis::less(Value a, Value b) {
  return builder.createOrFold<arith::CmpIOp>(arith::CmpIPredicate::slt, a, b);
}

} // namespace tilewright
