// Elementary functions in fp32, as straight-line code on scalars or vectors: no libm call, no branch, no table.
// Each reduces its argument as in Cody and Waite (1980) and evaluates a minimax polynomial (Remez exchange).
#pragma once

#include "Emitter.h"

namespace tilewright::cpu {

/// 2^x for x <= 0, the exponential inside softmax: relative error below 2e-7, exactly 1 at 0, exactly 0 below -126 and
/// at -inf, NaN at NaN. For x > 127 the result is meaningless.
Value emitExp2NonPositive(Emitter &e, Value x);

/// e^x for every x, denormal results and overflow to +inf included; within 2 ulp.
Value emitExp(Emitter &e, Value x);

/// Natural logarithm, within 2 ulp: -inf at 0, NaN below, +inf at +inf, denormals included.
Value emitLog(Emitter &e, Value x);

/// Hyperbolic tangent, within 3 ulp.
Value emitTanh(Emitter &e, Value x);

} // namespace tilewright::cpu
