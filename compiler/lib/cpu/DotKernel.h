// tw.dot: the register-tiled matrix product.
//
// C = A B or A B^T with A and C in panels (own rows along the lanes) and B row-major. A block of C, panelVectors
// vectors by `columnsInRegisters` columns, stays in registers while the inner dimension runs: each step loads the
// panel's vectors of A, broadcasts one scalar of B a column, and does one fused multiply-add an accumulator.
#pragma once

#include "TileStorage.h"

namespace tilewright::cpu {

struct DotOptions {
  bool transposeB = false;
  bool accumulate = false; ///< C += instead of C =.
  Value factor;            ///< f32 that the product is multiplied by; null for none. Not with accumulate.
  /// An element of A that is exactly 0 contributes nothing, even where B is infinite or NaN: weights of keys that a
  /// mask hides. Costs nothing while B is finite (b.finite says so).
  bool skipZeros = false;
};

/// A: R x K panels. B: K x C, or C x K with transposeB, row-major. C: R x C panels, 64-byte aligned.
void emitDot(Emitter &e, const TileBuffer &a, const TileBuffer &b, const TileBuffer &c, const DotOptions &options);

} // namespace tilewright::cpu
