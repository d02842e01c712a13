#include "Elementary.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include <limits>

using namespace mlir;
using arith::CmpFPredicate;

namespace tilewright::cpu {

namespace {

constexpr double kLog2E = 1.4426950408889634;
// ln 2 in two parts; n * kLn2High is exact for |n| < 2^10.
constexpr double kLn2High = 0.693359375, kLn2Low = -2.12194440054690583e-4;
// 1.5 * 2^23: adding it to |x| < 2^22 rounds x to an integer, which then sits in the low mantissa bits.
constexpr double kRounder = 12582912.0;

/// coefficients[0] + x (coefficients[1] + ...)
Value polynomial(Emitter &e, Value x, ArrayRef<double> coefficients) {
  Value sum = e.number(x.getType(), coefficients.back());
  for (double c : llvm::reverse(coefficients.drop_back()))
    sum = e.fma(sum, x, e.number(x.getType(), c));
  return sum;
}

Value shiftLeft(Emitter &e, Value bits, int64_t count) {
  return arith::ShLIOp::create(e, bits, e.constant(bits.getType(), count));
}
Value shiftRight(Emitter &e, Value bits, int64_t count) {
  return arith::ShRSIOp::create(e, bits, e.constant(bits.getType(), count));
}

/// 2^n for integers n in [-126, 127].
Value powerOfTwo(Emitter &e, Value n, Type type) {
  Value biased = e.add(n, e.constant(n.getType(), 127));
  return e.bitcast(type, shiftLeft(e, biased, 23));
}

} // namespace

Value emitExp2NonPositive(Emitter &e, Value x) {
  Type type = x.getType(), bits = Emitter::like(type, e.i32);
  Value rounder = e.number(type, kRounder);
  Value shifted = e.add(x, rounder);
  Value fraction = e.sub(x, e.sub(shifted, rounder));
  Value mantissa = polynomial(
      e, fraction,
      {1.0, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957, 0.0013264729641377926});
  // The integer part, still in the low bits of `shifted`, goes straight into the exponent field.
  Value scaled = e.bitcast(type, e.add(e.bitcast(bits, mantissa), shiftLeft(e, e.bitcast(bits, shifted), 23)));
  return e.select(e.compare(CmpFPredicate::OLT, x, e.number(type, -126.0)), e.number(type, 0.0), scaled);
}

Value emitExp(Emitter &e, Value x) {
  Type type = x.getType(), bits = Emitter::like(type, e.i32);
  Value clamped = e.minOrSecond(e.number(type, 90.0), e.maxOrSecond(e.number(type, -105.0), x));
  Value shifted = e.fma(clamped, e.number(type, kLog2E), e.number(type, kRounder));
  Value n = e.sub(shifted, e.number(type, kRounder));
  Value r = e.fma(n, e.number(type, -kLn2High), clamped);
  r = e.fma(n, e.number(type, -kLn2Low), r);
  Value tail =
      polynomial(e, r, {0.5, 0.1666652113199234, 0.04166838899254799, 0.008368710055947304, 0.001381461275741458});
  Value mantissa = e.add(e.fma(e.mul(r, r), tail, r), e.number(type, 1.0));
  // 2^n in two factors, so that results beyond either end of the normal range come out right.
  Value whole = e.sub(e.bitcast(bits, shifted), e.constant(bits, 0x4b400000));
  Value half = shiftRight(e, whole, 1);
  Value result = e.mul(mantissa, powerOfTwo(e, half, type));
  return e.mul(result, powerOfTwo(e, e.sub(whole, half), type));
}

Value emitLog(Emitter &e, Value x) {
  Type type = x.getType(), bits = Emitter::like(type, e.i32);
  const double infinity = std::numeric_limits<float>::infinity();
  // Denormals are scaled up by 2^23 first.
  Value tiny = e.compare(CmpFPredicate::OLT, x, e.number(type, std::numeric_limits<float>::min()));
  Value normal = e.select(tiny, e.mul(x, e.number(type, 8388608.0)), x);
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2).
  Value pattern = e.bitcast(bits, normal);
  Value n = shiftRight(e, e.sub(pattern, e.constant(bits, 0x3f3504f3)), 23);
  Value f = e.sub(e.bitcast(type, e.sub(pattern, shiftLeft(e, n, 23))), e.number(type, 1.0));
  n = e.sub(n, e.select(tiny, e.constant(bits, 23), e.constant(bits, 0)));
  Value exponent = arith::SIToFPOp::create(e, type, n);
  Value square = e.mul(f, f);
  Value tail = polynomial(e, f,
                          {0.3333331048488617, -0.24999986588954926, 0.20002226531505585, -0.16669252514839172,
                           0.14218664169311523, -0.12384334951639175, 0.11872924119234085, -0.11789865791797638,
                           0.06915546208620071});
  Value correction = e.fma(e.mul(square, f), tail, e.mul(exponent, e.number(type, kLn2Low)));
  correction = e.fma(square, e.number(type, -0.5), correction);
  Value result = e.fma(exponent, e.number(type, kLn2High), e.add(f, correction));
  // The ends of the domain: 0, negative numbers, +inf. NaN came through the arithmetic.
  result = e.select(e.compare(CmpFPredicate::OEQ, x, e.number(type, 0.0)), e.number(type, -infinity), result);
  result = e.select(e.compare(CmpFPredicate::OLT, x, e.number(type, 0.0)),
                    e.number(type, std::numeric_limits<float>::quiet_NaN()), result);
  Value special = e.compare(CmpFPredicate::UEQ, x, e.number(type, infinity));
  return e.select(special, x, result);
}

Value emitTanh(Emitter &e, Value x) {
  Type type = x.getType();
  Value magnitude = math::AbsFOp::create(e, x);
  Value square = e.mul(x, x);
  Value small = e.fma(e.mul(square, x),
                      polynomial(e, square,
                                 {-0.3333328366279602, 0.13331490755081177, -0.05374349653720856, 0.02065058797597885,
                                  -0.0057170456275343895}),
                      x);
  Value one = e.number(type, 1.0);
  Value large = e.sub(one, e.div(e.number(type, 2.0), e.add(emitExp(e, e.add(magnitude, magnitude)), one)));
  large = math::CopySignOp::create(e, large, x);
  return e.select(e.compare(CmpFPredicate::OLT, magnitude, e.number(type, 0.625)), small, large);
}

} // namespace tilewright::cpu
