#include "Emitter.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace tilewright::cpu {

Emitter::Emitter(Location loc, MLIRContext *context, int64_t vectorBits)
    : ImplicitLocOpBuilder(loc, context), lanes(vectorBits / 32), hasHalfConversion(vectorBits >= 256) {
  f32 = getF32Type();
  i1 = getI1Type();
  i16 = getIntegerType(16);
  i32 = getI32Type();
  i64 = getI64Type();
  pointer = LLVM::LLVMPointerType::get(context);
}

Type Emitter::like(Type shape, Type element) {
  auto vector = dyn_cast<VectorType>(shape);
  return vector ? Type(VectorType::get(vector.getShape(), element)) : element;
}

Value Emitter::constant(int64_t value) { return constant(i64, value); }

Value Emitter::constant(Type type, int64_t value) {
  TypedAttr attribute = getIntegerAttr(getElementTypeOrSelf(type), value);
  if (auto vector = dyn_cast<VectorType>(type)) attribute = DenseElementsAttr::get(vector, Attribute(attribute));
  return arith::ConstantOp::create(*this, attribute);
}

Value Emitter::number(Type type, double value) {
  TypedAttr attribute = getF32FloatAttr(static_cast<float>(value));
  if (auto vector = dyn_cast<VectorType>(type)) attribute = DenseElementsAttr::get(vector, Attribute(attribute));
  return arith::ConstantOp::create(*this, attribute);
}

static bool isFloat(Value value) { return isa<FloatType>(getElementTypeOrSelf(value.getType())); }

Value Emitter::add(Value a, Value b) {
  return isFloat(a) ? createOrFold<arith::AddFOp>(a, b) : createOrFold<arith::AddIOp>(a, b);
}
Value Emitter::sub(Value a, Value b) {
  return isFloat(a) ? createOrFold<arith::SubFOp>(a, b) : createOrFold<arith::SubIOp>(a, b);
}
Value Emitter::mul(Value a, Value b) {
  return isFloat(a) ? createOrFold<arith::MulFOp>(a, b) : createOrFold<arith::MulIOp>(a, b);
}
Value Emitter::div(Value a, Value b) { return arith::DivFOp::create(*this, a, b); }

Value Emitter::fma(Value a, Value b, Value c) { return LLVM::FMulAddOp::create(*this, a.getType(), a, b, c); }

Value Emitter::compare(arith::CmpFPredicate predicate, Value a, Value b) {
  return arith::CmpFOp::create(*this, predicate, a, b);
}
Value Emitter::compare(arith::CmpIPredicate predicate, Value a, Value b) {
  return createOrFold<arith::CmpIOp>(predicate, a, b);
}
Value Emitter::select(Value condition, Value a, Value b) { return createOrFold<arith::SelectOp>(condition, a, b); }

// The patterns "a > b ? a : b" and "a < b ? a : b" are exactly what (v)maxps and (v)minps compute.
Value Emitter::maxOrSecond(Value a, Value b) { return select(compare(arith::CmpFPredicate::OGT, a, b), a, b); }
Value Emitter::minOrSecond(Value a, Value b) { return select(compare(arith::CmpFPredicate::OLT, a, b), a, b); }

Value Emitter::minSigned(Value a, Value b) { return createOrFold<arith::MinSIOp>(a, b); }
Value Emitter::maxSigned(Value a, Value b) { return createOrFold<arith::MaxSIOp>(a, b); }

Value Emitter::bitcast(Type type, Value value) { return arith::BitcastOp::create(*this, type, value); }

Value Emitter::broadcast(Value scalar) {
  if (isa<VectorType>(scalar.getType())) return scalar;
  return vector::BroadcastOp::create(*this, vectorOf(scalar.getType()), scalar);
}

Value Emitter::anyLane(Value condition) {
  return vector::ReductionOp::create(*this, vector::CombiningKind::OR, condition);
}

Value Emitter::toI64(Value position) {
  return position.getType() == i64 ? position : createOrFold<arith::ExtSIOp>(i64, position);
}
Value Emitter::toPosition(Type type, Value value) {
  return type == i64 ? value : createOrFold<arith::TruncIOp>(type, value);
}

Value Emitter::advance(Value base, Value bytes) {
  return LLVM::GEPOp::create(*this, pointer, getI8Type(), base, ArrayRef<LLVM::GEPArg>{bytes},
                             LLVM::GEPNoWrapFlags::inbounds);
}
Value Emitter::advance(Value base, int64_t bytes) {
  if (bytes == 0) return base;
  return LLVM::GEPOp::create(*this, pointer, getI8Type(), base, ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(bytes)},
                             LLVM::GEPNoWrapFlags::inbounds);
}

Value Emitter::load(Type type, Value address, unsigned alignment) {
  return LLVM::LoadOp::create(*this, type, address, alignment);
}
void Emitter::store(Value value, Value address, unsigned alignment) {
  LLVM::StoreOp::create(*this, value, address, alignment);
}

Value Emitter::maskedLoad(Type element, Value address, Value condition, unsigned alignment) {
  VectorType type = vectorOf(element);
  Value zero = arith::ConstantOp::create(*this, getZeroAttr(type));
  return LLVM::MaskedLoadOp::create(*this, type, address, condition, zero, getI32IntegerAttr(alignment));
}
void Emitter::loop(Value begin, Value end, int64_t step, function_ref<void(Value)> body) {
  auto op = scf::ForOp::create(*this, begin, end, constant(step));
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(op.getBody());
  body(op.getInductionVar());
}

Emitter::Carried Emitter::loop(Value begin, Value end, int64_t step, ValueRange inits,
                               function_ref<Carried(Value, ValueRange)> body) {
  auto op = scf::ForOp::create(*this, begin, end, constant(step), inits);
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(op.getBody());
  Carried next = body(op.getInductionVar(), op.getRegionIterArgs());
  if (!inits.empty()) scf::YieldOp::create(*this, next); // without values the loop has its terminator already
  return Carried(op.getResults());
}

void Emitter::loop(int64_t begin, int64_t end, int64_t step, function_ref<void(Value)> body) {
  loop(constant(begin), constant(end), step, body);
}

Emitter::Carried Emitter::loop(int64_t begin, int64_t end, int64_t step, ValueRange inits,
                               function_ref<Carried(Value, ValueRange)> body) {
  return loop(constant(begin), constant(end), step, inits, body);
}

void Emitter::branch(Value condition, function_ref<void()> then, function_ref<void()> otherwise) {
  auto op = scf::IfOp::create(*this, condition, static_cast<bool>(otherwise));
  OpBuilder::InsertionGuard guard(*this);
  setInsertionPointToStart(op.thenBlock());
  then();
  if (!otherwise) return;
  setInsertionPointToStart(op.elseBlock());
  otherwise();
}

} // namespace tilewright::cpu
