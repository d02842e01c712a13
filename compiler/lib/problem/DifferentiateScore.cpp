// tw-differentiate-score: d score / d s by forward-mode differentiation of the score region.
//
// Every f32 value v of the region gets a tangent dv/ds; s has tangent 1, everything that does not depend on s has none
// (null), so no dead arithmetic is built for it. At a kink (abs, min, max) the derivative is that of the branch taken.
#include "tilewright/passes/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace tilewright {
#define GEN_PASS_DEF_DIFFERENTIATESCORE
#include "tilewright/passes/Passes.h.inc"

namespace {

class Differentiator {
public:
  Differentiator(ImplicitLocOpBuilder &builder, Block &block) : builder(builder) {
    tangents[block.getArgument(0)] = constant(1.0f);
  }

  /// Builds the tangent of `op`'s result after it. Failure names an operation that has no rule.
  LogicalResult visit(Operation &op) {
    if (op.getNumResults() != 1 || !op.getResult(0).getType().isF32()) return success();
    bool depends = llvm::any_of(op.getOperands(), [&](Value v) { return tangents.count(v); });
    if (!depends) return success();
    Value tangent = rule(op);
    if (!tangent) return op.emitOpError("has no derivative rule");
    tangents[op.getResult(0)] = tangent;
    return success();
  }

  Value tangentOr0(Value v) {
    Value known = tangents.lookup(v);
    return known ? known : constant(0.0f);
  }

private:
  Value rule(Operation &op) {
    Value result = op.getResult(0);
    return llvm::TypeSwitch<Operation *, Value>(&op)
        .Case([&](arith::NegFOp o) { return negate(tangentOr0(o.getOperand())); })
        .Case([&](arith::AddFOp o) { return addTangents(o.getLhs(), o.getRhs()); })
        .Case([&](arith::SubFOp o) { return subTangents(o.getLhs(), o.getRhs()); })
        .Case([&](arith::MulFOp o) { return add(times(o.getLhs(), o.getRhs()), times(o.getRhs(), o.getLhs())); })
        .Case([&](arith::DivFOp o) {
          // (a/b)' = (a' - (a/b) b') / b
          Value numerator = subtract(tangents.lookup(o.getLhs()), times(result, o.getRhs()));
          return Value(arith::DivFOp::create(builder, numerator, o.getRhs()));
        })
        .Case([&](math::FloorOp) { return constant(0.0f); })
        .Case([&](arith::SelectOp o) {
          return Value(arith::SelectOp::create(builder, o.getCondition(), tangentOr0(o.getTrueValue()),
                                               tangentOr0(o.getFalseValue())));
        })
        .Case([&](arith::MinNumFOp o) { return pick(arith::CmpFPredicate::OLE, o.getLhs(), o.getRhs()); })
        .Case([&](arith::MaxNumFOp o) { return pick(arith::CmpFPredicate::OGE, o.getLhs(), o.getRhs()); })
        .Case([&](math::AbsFOp o) {
          Value positive = arith::CmpFOp::create(builder, arith::CmpFPredicate::OGE, o.getOperand(), constant(0.0f));
          Value tangent = tangentOr0(o.getOperand());
          return Value(arith::SelectOp::create(builder, positive, tangent, negate(tangent)));
        })
        .Case([&](math::ExpOp o) { return multiply(result, tangentOr0(o.getOperand())); })
        .Case([&](math::LogOp o) {
          return Value(arith::DivFOp::create(builder, tangentOr0(o.getOperand()), o.getOperand()));
        })
        .Case([&](math::TanhOp o) {
          // tanh' = 1 - tanh^2
          Value factor = subtract(constant(1.0f), multiply(result, result));
          return multiply(factor, tangentOr0(o.getOperand()));
        })
        .Default([](Operation *) { return Value(); });
  }

  // Arithmetic on tangents; a null operand is an exact zero.
  Value constant(float value) { return arith::ConstantOp::create(builder, builder.getF32FloatAttr(value)); }
  Value negate(Value a) { return a ? Value(arith::NegFOp::create(builder, a)) : a; }
  Value add(Value a, Value b) { return !a ? b : !b ? a : Value(arith::AddFOp::create(builder, a, b)); }
  Value subtract(Value a, Value b) { return !b ? a : !a ? negate(b) : Value(arith::SubFOp::create(builder, a, b)); }
  Value multiply(Value a, Value b) { return arith::MulFOp::create(builder, a, b); }
  Value times(Value factor, Value of) {
    Value tangent = tangents.lookup(of);
    return tangent ? multiply(factor, tangent) : tangent;
  }
  Value addTangents(Value a, Value b) { return add(tangents.lookup(a), tangents.lookup(b)); }
  Value subTangents(Value a, Value b) { return subtract(tangents.lookup(a), tangents.lookup(b)); }
  Value pick(arith::CmpFPredicate predicate, Value a, Value b) {
    Value first = arith::CmpFOp::create(builder, predicate, a, b);
    return arith::SelectOp::create(builder, first, tangentOr0(a), tangentOr0(b));
  }

  ImplicitLocOpBuilder &builder;
  llvm::DenseMap<Value, Value> tangents;
};

struct DifferentiateScorePass : impl::DifferentiateScoreBase<DifferentiateScorePass> {
  void runOnOperation() override {
    getOperation().walk([&](tw::AttentionOp attention) {
      if (attention.getScore().empty() || !attention.getScoreGradient().empty()) return;
      IRMapping mapping;
      attention.getScore().cloneInto(&attention.getScoreGradient(), mapping);
      Block &block = attention.getScoreGradient().front();
      ImplicitLocOpBuilder builder(attention.getLoc(), &getContext());
      builder.setInsertionPointToStart(&block);
      Differentiator differentiator(builder, block);
      auto yield = cast<tw::YieldOp>(block.getTerminator());
      for (Operation &op : llvm::make_early_inc_range(block.without_terminator())) {
        builder.setInsertionPointAfter(&op);
        if (failed(differentiator.visit(op))) return signalPassFailure();
      }
      builder.setInsertionPoint(yield);
      yield->setOperand(0, differentiator.tangentOr0(yield.getValues()[0]));
    });
  }
};

} // namespace
} // namespace tilewright
