// Conversions between the stored types (fp32, fp16, bf16) and fp32, on scalars and vectors.
#pragma once

#include "Emitter.h"

namespace tilewright::cpu {

/// Reads `count` elements of f32, f16 or bf16 (`stored`) from `address` as f32: a vector, or a scalar for a count of 1.
/// Exact; NaN stays NaN.
Value emitLoadAsF32(Emitter &e, Type stored, Value address, int64_t count);

/// Writes f32 (scalar or vector) as `stored`, rounded to nearest even; too large becomes infinite, NaN stays NaN.
void emitStoreFromF32(Emitter &e, Type stored, Value value, Value address);

/// Bytes of one stored element.
inline int64_t bytesOf(Type stored) { return stored.getIntOrFloatBitWidth() / 8; }

} // namespace tilewright::cpu
