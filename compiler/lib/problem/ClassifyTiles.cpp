// tw-classify-tiles: from a mask to the bounds and classes of tiles (Passes.td describes the functions it adds).
#include "BoxAnalysis.h"
#include "tilewright/passes/Passes.h"
#include "tilewright/plan/Problem.h"

using namespace mlir;

namespace tilewright {
#define GEN_PASS_DEF_CLASSIFYTILES
#include "tilewright/passes/Passes.h.inc"

namespace {

enum MaskArgument : unsigned { Q, K, SQ, SK, H, B };

/// What a condition leaves visible along one axis x, for the fixed box of the other: positions [touchBegin, touchEnd)
/// hold every visible one, all of [fullBegin, fullEnd) are visible for the whole box. A null begin or end is open: the
/// condition sets no bound there. `interval`: for each single row the visible positions are one interval, and the
/// bounds are those of its ends.
struct AxisBounds {
  Value touchBegin, touchEnd, fullBegin, fullEnd;
  bool interval = true;

  bool openBelow() const { return !touchBegin && !fullBegin; }
  bool openAbove() const { return !touchEnd && !fullEnd; }
};

/// Solves a mask for one axis.
class AxisSolver {
public:
  AxisSolver(BoxAnalysis &box, unsigned axis) : box(box), axis(axis) {}

  AxisBounds solve(Value condition, bool negated) {
    if (std::optional<Comparison> standard = box.comparison(condition, negated)) {
      LinearForm form = standard->form, opposite;
      opposite.add(form, -1);
      switch (standard->relation) {
      case Relation::AtMostZero:
        return atMostZero(form);
      case Relation::EqualsZero:
        return allOf(atMostZero(form), atMostZero(opposite));
      case Relation::DiffersFromZero:
        return anyOf(atMostZero(plusOne(form)), atMostZero(plusOne(opposite)));
      }
    }
    Operation *op = condition.getDefiningOp();
    if (!constantOf(condition) && op) {
      if (isa<arith::AndIOp, arith::OrIOp>(op)) {
        AxisBounds a = solve(op->getOperand(0), negated), b = solve(op->getOperand(1), negated);
        return isa<arith::AndIOp>(op) != negated ? allOf(a, b) : anyOf(a, b);
      }
      if (auto flip = dyn_cast<arith::XOrIOp>(op)) return solve(flip.getLhs(), !negated);
      if (box.dependsOn(condition, axis)) return unknown();
    }
    return independent(box.verdict(condition, negated));
  }

private:
  static LinearForm plusOne(LinearForm form) {
    form.addConstant(1);
    return form;
  }

  /// Nothing is known about which positions satisfy the condition.
  AxisBounds unknown() {
    AxisBounds bounds;
    bounds.fullBegin = bounds.fullEnd = box.constant(0);
    bounds.interval = false;
    return bounds;
  }

  /// The condition does not look at the axis: all positions or none. Expressed as an upper end of "infinity" or 0.
  AxisBounds independent(Verdict verdict) {
    AxisBounds bounds;
    if (constantOf(verdict.certain) == 1) return bounds;
    bounds.touchEnd = box.select(verdict.possible, box.constant(kMaxSequence), box.constant(0));
    bounds.fullEnd = box.select(verdict.certain, box.constant(kMaxSequence), box.constant(0));
    return bounds;
  }

  /// form <= 0, solved for the axis.
  AxisBounds atMostZero(const LinearForm &form) {
    SmallVector<std::pair<Value, int64_t>, 2> varying;
    for (auto &term : form.terms)
      if (box.dependsOn(term.first, axis)) varying.push_back(term);
    if (varying.empty()) return independent(box.verdict(Comparison{form, Relation::AtMostZero}));
    if (varying.size() > 1) return unknown();
    auto [atom, coefficient] = varying.front();
    LinearForm rest = form;
    rest.addTerm(atom, -coefficient);
    if (auto argument = dyn_cast<BlockArgument>(atom)) return linearBound(coefficient, rest, box.isSaturable(form));
    Operation *op = atom.getDefiningOp();
    if (isa<arith::MinSIOp, arith::MaxSIOp, math::AbsIOp>(op)) return branches(op, coefficient, rest);
    if (isa<arith::FloorDivSIOp>(op) && std::abs(coefficient) == 1) return floorBound(op, coefficient, rest);
    return unknown();
  }

  /// coefficient * x + rest <= 0.
  AxisBounds linearBound(int64_t coefficient, const LinearForm &rest, bool isSaturable) {
    AxisBounds bounds;
    LinearForm opposite;
    opposite.add(rest, -1);
    const bool saturated = !box.fits(opposite);
    if (saturated && !isSaturable) return unknown();
    Interval limit = box.interval(opposite, saturated);
    if (coefficient > 0) { // x <= floor(-rest / coefficient)
      bounds.touchEnd = box.add(box.floorDiv(limit.max, coefficient), box.constant(1));
      bounds.fullEnd = box.add(box.floorDiv(limit.min, coefficient), box.constant(1));
    } else { // x >= ceil(rest / |coefficient|) = -floor(-rest / |coefficient|)
      bounds.touchBegin = box.scale(box.floorDiv(limit.max, -coefficient), -1);
      bounds.fullBegin = box.scale(box.floorDiv(limit.min, -coefficient), -1);
    }
    return bounds;
  }

  /// +-floor(e / m) + rest <= 0 with e linear: floor(e / m) <= t is e <= m t + m - 1; floor(e / m) >= t is e >= m t.
  AxisBounds floorBound(Operation *floorDiv, int64_t coefficient, const LinearForm &rest) {
    int64_t divisor = *constantOf(floorDiv->getOperand(1));
    LinearForm dividend = box.linear(floorDiv->getOperand(0)), solved;
    solved.add(dividend, coefficient).add(rest, divisor);
    if (coefficient > 0) solved.addConstant(1 - divisor);
    return atMostZero(solved);
  }

  /// +-min/max/abs(...) + rest <= 0, as a conjunction or disjunction over its branches.
  AxisBounds branches(Operation *op, int64_t coefficient, const LinearForm &rest) {
    if (++branchCount > kMostBranches) return unknown();
    LinearForm first = rest, second = rest;
    first.add(box.linear(op->getOperand(0)), coefficient);
    bool isAbs = isa<math::AbsIOp>(op); // |e| = max(e, -e)
    second.add(box.linear(op->getOperand(isAbs ? 0 : 1)), isAbs ? -coefficient : coefficient);
    bool every = isa<arith::MinSIOp>(op) ? coefficient < 0 : coefficient > 0;
    AxisBounds a = atMostZero(first), b = atMostZero(second);
    return every ? allOf(a, b) : anyOf(a, b);
  }

  Value largest(Value a, Value b) { return !a ? b : !b ? a : box.max(a, b); }
  Value smallest(Value a, Value b) { return !a ? b : !b ? a : box.min(a, b); }

  AxisBounds allOf(const AxisBounds &a, const AxisBounds &b) {
    return {largest(a.touchBegin, b.touchBegin), smallest(a.touchEnd, b.touchEnd), largest(a.fullBegin, b.fullBegin),
            smallest(a.fullEnd, b.fullEnd), a.interval && b.interval};
  }

  AxisBounds anyOf(const AxisBounds &a, const AxisBounds &b) {
    AxisBounds bounds;
    if (a.interval && b.interval && a.openBelow() && b.openBelow()) { // x < max of the two ends
      if (a.openAbove() || b.openAbove()) return bounds;
      bounds.touchEnd = box.max(a.touchEnd, b.touchEnd);
      bounds.fullEnd = box.max(a.fullEnd, b.fullEnd);
      return bounds;
    }
    if (a.interval && b.interval && a.openAbove() && b.openAbove()) {
      if (a.openBelow() || b.openBelow()) return bounds;
      bounds.touchBegin = box.min(a.touchBegin, b.touchBegin);
      bounds.fullBegin = box.min(a.fullBegin, b.fullBegin);
      return bounds;
    }
    // Two pieces: the hull is what may be touched, the classes function decides inside it.
    bounds = unknown();
    if (a.touchBegin && b.touchBegin) bounds.touchBegin = box.min(a.touchBegin, b.touchBegin);
    if (a.touchEnd && b.touchEnd) bounds.touchEnd = box.max(a.touchEnd, b.touchEnd);
    return bounds;
  }

  /// Each level of nested min, max and abs doubles the branches: deeper ones are left to the classes, which take every
  /// level once.
  static constexpr int kMostBranches = 64;

  BoxAnalysis &box;
  unsigned axis;
  int branchCount = 0;
};

class FunctionWriter {
public:
  FunctionWriter(tw::AttentionOp attention)
      : attention(attention), builder(attention.getLoc(), attention.getContext()) {
    position = attention.getPosition();
  }

  /// Adds @NAME_kv_bounds or @NAME_q_bounds; true when the bounds alone decide.
  bool writeBounds(StringRef suffix, unsigned axis) {
    unsigned other = axis == K ? Q : K;
    Block *entry = begin(suffix, {position, position, position, position, position, position},
                         {position, position, position, position});
    auto argument = [&](unsigned i) { return Interval{entry->getArgument(i), entry->getArgument(i)}; };
    // Arguments: first, last, sq, sk, h, b. Rows past the end do not exist: they must not widen the box.
    Value length = entry->getArgument(axis == K ? 3 : 2), otherLength = entry->getArgument(axis == K ? 2 : 3);
    Interval box[6];
    box[other] = {entry->getArgument(0), clampLast(entry->getArgument(1), otherLength)};
    Value zero = arith::ConstantOp::create(builder, builder.getIntegerAttr(position, 0));
    box[axis] = {zero, clampLast(length, length)};
    for (unsigned i = SQ; i <= B; ++i)
      box[i] = argument(i);

    AxisBounds bounds;
    if (!attention.getMask().empty()) {
      Block &mask = attention.getMask().front();
      BoxAnalysis analysis(builder, mask, position, box);
      bounds = AxisSolver(analysis, axis).solve(cast<tw::YieldOp>(mask.getTerminator()).getValues()[0], false);
    }
    auto atLeast0 = [&](Value v) { return v ? Value(arith::MaxSIOp::create(builder, v, zero)) : zero; };
    auto atMostLength = [&](Value v) { return v ? Value(arith::MinSIOp::create(builder, v, length)) : length; };
    Value results[] = {atLeast0(bounds.touchBegin), atMostLength(bounds.touchEnd), atLeast0(bounds.fullBegin),
                       atMostLength(bounds.fullEnd)};
    func::ReturnOp::create(builder, results);
    return bounds.interval;
  }

  void writeClasses() {
    Block *entry = begin("classes", SmallVector<Type>(8, position), {builder.getI1Type(), builder.getI1Type()});
    Value sq = entry->getArgument(4), sk = entry->getArgument(5);
    Interval box[6] = {{entry->getArgument(0), clampLast(entry->getArgument(1), sq)},
                       {entry->getArgument(2), clampLast(entry->getArgument(3), sk)}};
    for (unsigned i = SQ; i <= B; ++i)
      box[i] = {entry->getArgument(i + 2), entry->getArgument(i + 2)};
    Verdict verdict;
    if (attention.getMask().empty()) {
      Value yes = arith::ConstantIntOp::create(builder, 1, 1);
      verdict = {yes, yes};
    } else {
      Block &mask = attention.getMask().front();
      BoxAnalysis analysis(builder, mask, position, box);
      verdict = analysis.verdict(cast<tw::YieldOp>(mask.getTerminator()).getValues()[0]);
    }
    func::ReturnOp::create(builder, ValueRange{verdict.possible, verdict.certain});
  }

private:
  Block *begin(StringRef suffix, ArrayRef<Type> inputs, ArrayRef<Type> results) {
    builder.setInsertionPoint(attention);
    auto function = func::FuncOp::create(builder, (attention.getSymName() + "_" + suffix).str(),
                                         builder.getFunctionType(inputs, results));
    function.setPrivate();
    Block *entry = function.addEntryBlock();
    builder.setInsertionPointToStart(entry);
    return entry;
  }

  /// min(last, length - 1)
  Value clampLast(Value last, Value length) {
    Value one = arith::ConstantOp::create(builder, builder.getIntegerAttr(position, 1));
    Value final = arith::SubIOp::create(builder, length, one);
    return last == length ? final : Value(arith::MinSIOp::create(builder, last, final));
  }

  tw::AttentionOp attention;
  ImplicitLocOpBuilder builder;
  Type position;
};

struct ClassifyTilesPass : impl::ClassifyTilesBase<ClassifyTilesPass> {
  void runOnOperation() override {
    getOperation().walk([&](tw::AttentionOp attention) {
      FunctionWriter writer(attention);
      UnitAttr yes = UnitAttr::get(&getContext());
      if (writer.writeBounds("kv_bounds", K)) attention->setAttr("interval_kv", yes);
      if (writer.writeBounds("q_bounds", Q)) attention->setAttr("interval_q", yes);
      writer.writeClasses();
    });
  }
};

} // namespace
} // namespace tilewright
