#include "InlineFunction.h"

#include "Elementary.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "tilewright/dialect/Tw.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace tilewright::cpu {

LogicalResult InlineFunction::bindArguments(ValueRange known, std::optional<LaneRange> laneRange) {
  lanes = laneRange;
  for (auto [argument, value] : llvm::zip_equal(function.getArguments(), known))
    if (value) bound.map(argument, value);
  return expand(bound);
}

FailureOr<Emitter::Carried> InlineFunction::evaluate(ValueRange late) {
  IRMapping mapping = bound;
  auto next = late.begin();
  for (BlockArgument argument : function.getArguments())
    if (!mapping.contains(argument)) mapping.map(argument, *next++);
  if (failed(expand(mapping))) return failure();
  Emitter::Carried results;
  for (Value v : function.getBody().front().getTerminator()->getOperands())
    results.push_back(mapping.lookup(v));
  return results;
}

LogicalResult InlineFunction::expand(IRMapping &mapping) {
  if (!function.getBody().hasOneBlock())
    return function.emitOpError("has branches; a mask, score or bounds function is one block");
  for (Operation &op : function.getBody().front().without_terminator()) {
    if (op.getNumResults() && mapping.contains(op.getResult(0))) continue;
    Emitter::Carried operands;
    for (Value operand : op.getOperands())
      if (Value value = mapping.lookupOrNull(operand)) operands.push_back(value);
    if (operands.size() != op.getNumOperands()) continue; // depends on a later argument
    FailureOr<Emitter::Carried> results = expandOperation(op, operands);
    if (failed(results)) return failure();
    mapping.map(op.getResults(), *results);
  }
  return success();
}

FailureOr<Emitter::Carried> InlineFunction::expandOperation(Operation &op, ValueRange operands) {
  if (auto read = dyn_cast<tw::ReadTableOp>(op))
    return Emitter::Carried{readTable(read.getTable(), read.getElement().getType(), operands)};
  if (isa<tw::TableBoundsOp>(op)) return tableBounds(op, operands);
  if (op.getNumRegions() || op.getNumResults() != 1 || !isa<arith::ArithDialect, math::MathDialect>(op.getDialect()))
    return op.emitOpError("has no CPU form inside a mask, score or bounds function");

  // Lanes differ as soon as one operand's do.
  Emitter::Carried values(operands);
  bool vector = llvm::any_of(values, [](Value v) { return isa<VectorType>(v.getType()); });
  if (vector)
    for (Value &v : values)
      v = e.broadcast(v);

  Value result = llvm::TypeSwitch<Operation *, Value>(&op)
                     .Case([&](math::ExpOp) { return emitExp(e, values[0]); })
                     .Case([&](math::LogOp) { return emitLog(e, values[0]); })
                     .Case([&](math::TanhOp) { return emitTanh(e, values[0]); })
                     .Case([&](arith::FloorDivSIOp) { return floorDivide(values[0], values[1]); })
                     .Default([&](Operation *plain) {
                       Operation *copy = e.insert(plain->clone());
                       copy->setOperands(values);
                       Value only = copy->getResult(0);
                       if (vector) only.setType(e.vectorOf(only.getType()));
                       return only;
                     });
  return Emitter::Carried{result};
}

/// floor(a / b) for b > 0: the truncated quotient, less one where the remainder is negative.
Value InlineFunction::floorDivide(Value a, Value b) {
  Value quotient = arith::DivSIOp::create(e, a, b);
  Value remainder = e.sub(a, e.mul(quotient, b));
  Value zero = e.constant(a.getType(), 0);
  Value below = e.compare(arith::CmpIPredicate::slt, remainder, zero);
  return e.sub(quotient, e.select(below, e.constant(a.getType(), 1), zero));
}

Value InlineFunction::readTable(int64_t table, Type element, ValueRange indices) {
  TableView view = arguments.table(table, indices.size() == 2 ? e.toI64(indices[0]) : Value());
  Type stored = element.isF32() ? e.f32 : e.i32;
  Value position = indices.back();
  Value read;
  if (auto type = dyn_cast<VectorType>(position.getType())) {
    Value end = e.broadcast(e.toPosition(type.getElementType(), lanes->length));
    Value exists = e.compare(arith::CmpIPredicate::slt, position, end);
    read = e.maskedLoad(stored, e.advance(view.data, e.mul(lanes->first, e.constant(4))), exists, 4);
  } else {
    read = e.load(stored, e.advance(view.data, e.mul(e.toI64(position), e.constant(4))), 4);
  }
  if (element == stored) return read;
  return arith::ExtSIOp::create(e, Emitter::like(read.getType(), element), read);
}

/// Minimum and maximum over the extents that the positions fall in; an empty range gives (largest, smallest) int32.
Emitter::Carried InlineFunction::tableBounds(Operation &op, ValueRange operands) {
  auto bounds = cast<tw::TableBoundsOp>(op);
  Value batch = bounds.getBatch() ? e.toI64(operands[0]) : Value();
  Value first = e.toI64(operands[operands.size() - 2]), last = e.toI64(operands[operands.size() - 1]);
  TableView view = arguments.table(bounds.getTable(), batch);
  Value shift = e.constant(llvm::Log2_64(kTableExtentTile));
  static_assert((kTableExtentTile & (kTableExtentTile - 1)) == 0);
  Value begin = arith::ShRSIOp::create(e, first, shift);
  Value end = e.add(arith::ShRSIOp::create(e, last, shift), e.constant(1));
  Value inits[] = {e.constant(e.i32, std::numeric_limits<int32_t>::max()),
                   e.constant(e.i32, std::numeric_limits<int32_t>::min())};
  Emitter::Carried extremes = e.loop(begin, end, 1, inits, [&](Value tile, ValueRange carried) {
    Value offset = e.mul(tile, e.constant(4));
    return Emitter::Carried{e.minSigned(e.load(e.i32, e.advance(view.tileMin, offset), 4), carried[0]),
                            e.maxSigned(e.load(e.i32, e.advance(view.tileMax, offset), 4), carried[1])};
  });
  if (bounds.getMin().getType() == e.i64)
    for (Value &v : extremes)
      v = e.toI64(v);
  return extremes;
}

} // namespace tilewright::cpu
