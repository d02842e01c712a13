// Where the tiles of a kernel live in a thread's scratch memory, and how they are laid out there.
//
// A kernel's own rows run along the vector lanes. A tile that has them (scores, probabilities, accumulators, the owned
// operand of a product) is stored in *panels* of P = panelVectors * lanes rows; inside a panel each column is
// contiguous:
//   element (r, c) at ((r / P) * cols + c) * P + r % P.
// The row reductions of softmax then are plain vertical vector operations, a product's result leaves its registers in
// the layout that the next product reads, and nothing is transposed between the two.
//
// A tile that is walked over is only read as scalars that are broadcast; it is stored by rows as in memory.
#pragma once

#include "Emitter.h"
#include "tilewright/dialect/Tw.h"

namespace tilewright::cpu {

struct TileBuffer {
  int64_t rows = 0, cols = 0;
  bool panels = false; ///< The panel layout above; otherwise row-major.
  Value base;          ///< Address of the first element, 64-byte aligned
  /// Row-major tiles that were loaded: whether all elements are finite (i1); null where nobody asks.
  Value finite;

  explicit operator bool() const { return static_cast<bool>(base); }
};

/// Gives tiles their place in scratch memory; one per kernel.
class TileStorage {
public:
  /// Addresses are computed before `anchor`, an operation of the kernel's entry block.
  TileStorage(Emitter &e, Value scratch, mlir::Operation *anchor) : e(e), scratch(scratch), anchor(anchor) {}

  TileBuffer allocate(tw::TileType type, bool panels);
  int64_t bytes() const { return used; }

private:
  Emitter &e;
  Value scratch;
  mlir::Operation *anchor;
  int64_t used = 0;
};

/// Vectors in a panel of a tile with this many rows: as many as registers leave room for beside the accumulators of a
/// product (DotKernel.cpp).
int64_t panelVectors(const Emitter &e, int64_t rows);

/// The columns of one panel: each is vectors() vectors, contiguous.
class PanelColumns {
public:
  /// Panel number `panel` (i64) of `tile`.
  PanelColumns(Emitter &e, const TileBuffer &tile, Value panel);

  int64_t vectors() const { return count; }
  Value load(Value column, int64_t vector) const;
  void store(Value value, Value column, int64_t vector) const;
  Value address(Value column, int64_t vector) const;

private:
  Emitter &e;
  Value base;
  int64_t count;
};

/// Runs `body` for every panel of a tile with `rows` rows.
void forEachPanel(Emitter &e, int64_t rows, llvm::function_ref<void(Value panel)> body);

} // namespace tilewright::cpu
