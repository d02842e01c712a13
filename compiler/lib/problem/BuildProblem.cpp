// Problem -> problem-level IR.
#include "tilewright/problem/BuildProblem.h"

#include "tilewright/dialect/Tw.h"
#include "tilewright/expr/Evaluator.h"
#include "tilewright/expr/Parser.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

using namespace mlir;

namespace tilewright {
namespace {

/// Emits one expression into a region of tw.attention.
class ExpressionEmitter {
public:
  ExpressionEmitter(ImplicitLocOpBuilder &builder, Type positionType, const std::vector<TableSpec> &tables,
                    Block &block, bool takesScore)
      : builder(builder), positionType(positionType), tables(tables), block(block), takesScore(takesScore) {}

  Value emit(const expr::Expr &e) {
    using expr::Op;
    switch (e.op) {
    case Op::Literal: return literal(e);
    case Op::Variable: return variable(e.variable);
    case Op::Table: return readTable(e.table);
    default: break;
    }
    SmallVector<Value, 3> args;
    for (const expr::ExprPtr &arg : e.args) args.push_back(emit(*arg));
    return isa<FloatType>(args.back().getType()) ? floatOp(e, args) : intOp(e, args);
  }

private:
  Value literal(const expr::Expr &e) {
    if (e.type == expr::Type::Bool) return arith::ConstantIntOp::create(builder, e.intValue, 1);
    if (e.type == expr::Type::Int) return arith::ConstantOp::create(builder, builder.getIntegerAttr(positionType, e.intValue));
    return arith::ConstantOp::create(builder, builder.getF32FloatAttr(static_cast<float>(e.floatValue)));
  }

  Value variable(expr::Variable v) {
    if (v == expr::Variable::S) return block.getArgument(0);
    // Region arguments are (s,) q, k, sq, sk, h, b in the order of expr::Variable.
    return block.getArgument((takesScore ? 1 : 0) + static_cast<unsigned>(v));
  }

  Value readTable(int index) {
    const TableSpec &table = tables[index];
    SmallVector<Value, 2> indices;
    for (TableAxis axis : table.axes) indices.push_back(variable(axisVariable(axis)));
    Type element = table.isFloat ? Type(builder.getF32Type()) : Type(builder.getI32Type());
    Value read = tw::ReadTableOp::create(builder, element, table.name, index, indices);
    if (table.isFloat || positionType == element) return read;
    return arith::ExtSIOp::create(builder, positionType, read);
  }

  static expr::Variable axisVariable(TableAxis axis) {
    switch (axis) {
    case TableAxis::Q: return expr::Variable::Q;
    case TableAxis::K: return expr::Variable::K;
    case TableAxis::H: return expr::Variable::H;
    case TableAxis::B: return expr::Variable::B;
    }
    llvm_unreachable("all axes handled");
  }

  Value intOp(const expr::Expr &e, ArrayRef<Value> a) {
    using expr::Op;
    auto compare = [&](arith::CmpIPredicate predicate) -> Value {
      return arith::CmpIOp::create(builder, predicate, a[0], a[1]);
    };
    switch (e.op) {
    case Op::Neg: return arith::SubIOp::create(builder, zero(), a[0]);
    case Op::Add: return arith::AddIOp::create(builder, a[0], a[1]);
    case Op::Sub: return arith::SubIOp::create(builder, a[0], a[1]);
    case Op::Mul: return arith::MulIOp::create(builder, a[0], a[1]);
    case Op::FloorDiv: return arith::FloorDivSIOp::create(builder, a[0], a[1]);
    case Op::Mod: return tw::FloorModOp::create(builder, a[0], a[1]);
    case Op::Lt: return compare(arith::CmpIPredicate::slt);
    case Op::Le: return compare(arith::CmpIPredicate::sle);
    case Op::Gt: return compare(arith::CmpIPredicate::sgt);
    case Op::Ge: return compare(arith::CmpIPredicate::sge);
    case Op::Eq: return compare(arith::CmpIPredicate::eq);
    case Op::Ne: return compare(arith::CmpIPredicate::ne);
    case Op::And: return arith::AndIOp::create(builder, a[0], a[1]);
    case Op::Or: return arith::OrIOp::create(builder, a[0], a[1]);
    case Op::Not: return arith::XOrIOp::create(builder, a[0], Value(arith::ConstantIntOp::create(builder, 1, 1)));
    case Op::Where: return arith::SelectOp::create(builder, a[0], a[1], a[2]);
    case Op::Min: return arith::MinSIOp::create(builder, a[0], a[1]);
    case Op::Max: return arith::MaxSIOp::create(builder, a[0], a[1]);
    case Op::Abs: return math::AbsIOp::create(builder, a[0]);
    case Op::ToFloat: return arith::SIToFPOp::create(builder, builder.getF32Type(), a[0]);
    default: llvm_unreachable("not an integer operation");
    }
  }

  Value floatOp(const expr::Expr &e, ArrayRef<Value> a) {
    using expr::Op;
    auto compare = [&](arith::CmpFPredicate predicate) -> Value {
      return arith::CmpFOp::create(builder, predicate, a[0], a[1]);
    };
    auto floorDivide = [&]() -> Value {
      return math::FloorOp::create(builder, Value(arith::DivFOp::create(builder, a[0], a[1])));
    };
    switch (e.op) {
    case Op::Neg: return arith::NegFOp::create(builder, a[0]);
    case Op::Add: return arith::AddFOp::create(builder, a[0], a[1]);
    case Op::Sub: return arith::SubFOp::create(builder, a[0], a[1]);
    case Op::Mul: return arith::MulFOp::create(builder, a[0], a[1]);
    case Op::Div: return arith::DivFOp::create(builder, a[0], a[1]);
    case Op::FloorDiv: return floorDivide();
    case Op::Mod: {
      Value whole = arith::MulFOp::create(builder, floorDivide(), a[1]);
      return arith::SubFOp::create(builder, a[0], whole);
    }
    case Op::Lt: return compare(arith::CmpFPredicate::OLT);
    case Op::Le: return compare(arith::CmpFPredicate::OLE);
    case Op::Gt: return compare(arith::CmpFPredicate::OGT);
    case Op::Ge: return compare(arith::CmpFPredicate::OGE);
    case Op::Eq: return compare(arith::CmpFPredicate::OEQ);
    case Op::Ne: return compare(arith::CmpFPredicate::UNE);
    case Op::Where: return arith::SelectOp::create(builder, a[0], a[1], a[2]);
    case Op::Min: return arith::MinNumFOp::create(builder, a[0], a[1]);
    case Op::Max: return arith::MaxNumFOp::create(builder, a[0], a[1]);
    case Op::Abs: return math::AbsFOp::create(builder, a[0]);
    case Op::Exp: return math::ExpOp::create(builder, a[0]);
    case Op::Log: return math::LogOp::create(builder, a[0]);
    case Op::Tanh: return math::TanhOp::create(builder, a[0]);
    default: llvm_unreachable("not a float operation");
    }
  }

  Value zero() { return arith::ConstantOp::create(builder, builder.getIntegerAttr(positionType, 0)); }

  ImplicitLocOpBuilder &builder;
  Type positionType;
  const std::vector<TableSpec> &tables;
  Block &block;
  bool takesScore;
};

/// True when every integer of the expression fits int32 with room for the +-1 that tile bounds add.
bool fitsInt32(const expr::Expr &root) {
  bool fits = true;
  expr::walk(root, [&](const expr::Expr &e) {
    if (e.type != expr::Type::Int) return;
    std::optional<expr::IntRange> range = expr::rangeOf(e);
    // A table's elements are int32 as they stand; anything computed must stay well inside.
    int64_t limit = e.op == expr::Op::Table ? int64_t{1} << 31 : int64_t{1} << 30;
    if (!range || range->low < -limit || range->high > limit) fits = false;
  });
  return fits;
}

void emitRegion(OpBuilder &outer, Region &region, const expr::Expr &e, Type positionType,
                const std::vector<TableSpec> &tables, bool takesScore) {
  ImplicitLocOpBuilder builder(outer.getUnknownLoc(), outer.getContext());
  Block *block = builder.createBlock(&region);
  if (takesScore) block->addArgument(builder.getF32Type(), builder.getLoc());
  for (int i = 0; i < 6; ++i) block->addArgument(positionType, builder.getLoc());
  Value result = ExpressionEmitter(builder, positionType, tables, *block, takesScore).emit(e);
  tw::YieldOp::create(builder, ValueRange{result});
}

Type elementTypeOf(OpBuilder &builder, DType dtype) {
  switch (dtype) {
  case DType::F32: return builder.getF32Type();
  case DType::F16: return builder.getF16Type();
  case DType::BF16: return builder.getBF16Type();
  }
  llvm_unreachable("all dtypes handled");
}

} // namespace

Expected<OwningOpRef<ModuleOp>> buildProblem(MLIRContext &context, const Problem &problem) {
  expr::ExprPtr mask, score;
  if (std::string text = problem.fullMask(); !text.empty()) {
    Expected<expr::ExprPtr> parsed = expr::parseMask(text, problem.tables);
    if (!parsed) return propagate(parsed);
    mask = *parsed;
  }
  if (std::string text = problem.fullScore(); !text.empty()) {
    Expected<expr::ExprPtr> parsed = expr::parseScore(text, problem.tables);
    if (!parsed) return propagate(parsed);
    score = *parsed;
  }

  OpBuilder builder(&context);
  bool narrow = (!mask || fitsInt32(*mask)) && (!score || fitsInt32(*score));
  Type positionType = narrow ? builder.getI32Type() : builder.getI64Type();

  OwningOpRef<ModuleOp> module = ModuleOp::create(builder.getUnknownLoc());
  builder.setInsertionPointToStart(module->getBody());
  SmallVector<StringRef> tableNames;
  for (const TableSpec &table : problem.tables) tableNames.push_back(table.name);
  auto attention = tw::AttentionOp::create(builder, builder.getUnknownLoc(), kAttentionName, problem.dimQK,
                                           problem.dimV, problem.groupSize(), elementTypeOf(builder, problem.dtype),
                                           positionType, builder.getStrArrayAttr(tableNames));
  if (mask) emitRegion(builder, attention.getMask(), *mask, positionType, problem.tables, false);
  if (score) emitRegion(builder, attention.getScore(), *score, positionType, problem.tables, true);
  return module;
}

} // namespace tilewright
