// tw.load and tw.store: tiles between a tensor in memory and scratch, with conversion to and from fp32.
// Never touches memory outside the rows [0, length) of one head, whatever lies beyond.
#pragma once

#include "Arguments.h"
#include "TileStorage.h"

namespace tilewright::cpu {

/// A head of a tensor, and from which of its rows on a tile lies.
struct TileSource {
  HeadView head;
  Type stored;
  Value row, length;      ///< i64
  bool rowVector = false; ///< lse, delta: one f32 a row, contiguous
};

/// Fills `tile` (panels or row-major); rows at or past `length` become zero. With `noteFinite` sets tile.finite (for
/// row-major tiles).
void emitLoadTile(Emitter &e, const TileSource &source, TileBuffer &tile, bool noteFinite);

/// Writes the rows of `tile` (panels) that lie before `length`.
void emitStoreTile(Emitter &e, const TileBuffer &tile, const TileSource &destination);

} // namespace tilewright::cpu
