#include "NumberFormat.h"

#include "mlir/Dialect/Math/IR/Math.h"

using namespace mlir;
using arith::CmpFPredicate;
using arith::CmpIPredicate;

namespace tilewright::cpu {

namespace {

Value shiftLeft(Emitter &e, Value bits, int64_t count) {
  return arith::ShLIOp::create(e, bits, e.constant(bits.getType(), count));
}
Value shiftRight(Emitter &e, Value bits, int64_t count) {
  return arith::ShRUIOp::create(e, bits, e.constant(bits.getType(), count));
}
Value andBits(Emitter &e, Value bits, int64_t mask) {
  return arith::AndIOp::create(e, bits, e.constant(bits.getType(), mask));
}
Value orBits(Emitter &e, Value a, Value b) { return arith::OrIOp::create(e, a, b); }

/// fp16 bits in an i32 -> f32. Moving the fields into place leaves the exponent 112 too small; multiplying by 2^112
/// corrects that and normalises denormals on the way.
Value halfToSingle(Emitter &e, Value bits) {
  Type f32 = Emitter::like(bits.getType(), e.f32);
  Value magnitude = andBits(e, bits, 0x7fff);
  Value scaled = e.mul(e.bitcast(f32, shiftLeft(e, magnitude, 13)), e.number(f32, 0x1p112));
  // Exponent 31: infinity and NaN keep their mantissa under fp32's largest exponent.
  Value special = e.compare(CmpIPredicate::uge, magnitude, e.constant(bits.getType(), 0x7c00));
  Value result = e.bitcast(bits.getType(), scaled);
  result = e.select(special, orBits(e, result, e.constant(bits.getType(), 0x7f800000)), result);
  return e.bitcast(f32, orBits(e, result, shiftLeft(e, andBits(e, bits, 0x8000), 16)));
}

/// f32 -> fp16 bits in an i32.
Value singleToHalf(Emitter &e, Value value) {
  Type f32 = value.getType(), i32 = Emitter::like(f32, e.i32);
  Value bits = e.bitcast(i32, value);
  Value sign = shiftRight(e, andBits(e, bits, 0x80000000), 16);
  Value magnitude = andBits(e, bits, 0x7fffffff);
  // Normal results: round to nearest even at bit 13, then move the exponent from bias 127 to 15. The carry of the
  // rounding runs into the exponent, where it belongs.
  Value odd = andBits(e, shiftRight(e, magnitude, 13), 1);
  Value rounded = e.add(e.add(magnitude, e.constant(i32, 0xfff)), odd);
  Value normal = shiftRight(e, e.sub(rounded, e.constant(i32, 112 << 23)), 13);
  // Denormal results: adding 0.5 puts the last kept bit, 2^-24, in the last place of the sum; the addition rounds.
  Value sum = e.add(e.bitcast(f32, magnitude), e.number(f32, 0.5));
  Value denormal = e.sub(e.bitcast(i32, sum), e.constant(i32, 0x3f000000));
  Value result = e.select(e.compare(CmpIPredicate::ult, magnitude, e.constant(i32, 113 << 23)), denormal, normal);
  // 65520 and above round to infinity.
  result =
      e.select(e.compare(CmpIPredicate::uge, magnitude, e.constant(i32, 0x477ff000)), e.constant(i32, 0x7c00), result);
  result =
      e.select(e.compare(CmpIPredicate::ugt, magnitude, e.constant(i32, 0x7f800000)), e.constant(i32, 0x7e00), result);
  return orBits(e, result, sign);
}

/// f32 -> bf16 bits in an i32.
Value singleToBrain(Emitter &e, Value value) {
  Type i32 = Emitter::like(value.getType(), e.i32);
  Value bits = e.bitcast(i32, value);
  Value odd = andBits(e, shiftRight(e, bits, 16), 1);
  Value rounded = shiftRight(e, e.add(e.add(bits, e.constant(i32, 0x7fff)), odd), 16);
  // Rounding could carry a NaN's mantissa away, so NaN is cut instead and made quiet.
  Value quiet = orBits(e, shiftRight(e, bits, 16), e.constant(i32, 0x40));
  return e.select(e.compare(CmpFPredicate::UNO, value, value), quiet, rounded);
}

} // namespace

Value emitLoadAsF32(Emitter &e, Type stored, Value address, int64_t count) {
  auto shaped = [&](Type element) { return count == 1 ? element : Type(VectorType::get({count}, element)); };
  if (stored.isF32()) return e.load(shaped(e.f32), address, 4);
  if (stored.isF16() && e.hasHalfConversion)
    return arith::ExtFOp::create(e, shaped(e.f32), e.load(shaped(stored), address, 2));
  Value bits = arith::ExtUIOp::create(e, shaped(e.i32), e.load(shaped(e.i16), address, 2));
  if (stored.isF16()) return halfToSingle(e, bits);
  return e.bitcast(shaped(e.f32), shiftLeft(e, bits, 16));
}

void emitStoreFromF32(Emitter &e, Type stored, Value value, Value address) {
  if (stored.isF32()) return e.store(value, address, 4);
  if (stored.isF16() && e.hasHalfConversion)
    return e.store(arith::TruncFOp::create(e, Emitter::like(value.getType(), stored), value), address, 2);
  Value bits = stored.isF16() ? singleToHalf(e, value) : singleToBrain(e, value);
  e.store(arith::TruncIOp::create(e, Emitter::like(bits.getType(), e.i16), bits), address, 2);
}

} // namespace tilewright::cpu
