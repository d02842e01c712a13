// Run-time arguments of a CPU kernel: the fields of KernelArgs as values. A field is loaded once, at the kernel's
// entry, when it is first asked for.
#pragma once

#include "Emitter.h"
#include "tilewright/KernelArgs.h"
#include "llvm/ADT/StringRef.h"
#include <optional>

namespace tilewright::cpu {

/// One head of a tensor in memory: row r starts at base + r * rowBytes.
struct HeadView {
  Value base, rowBytes;
};

/// A table as a mask or score reads it; `batch` is the entry's first element and extents.
struct TableView {
  Value data, tileMin, tileMax;
};

class Arguments {
public:
  /// `block` is the pointer to KernelArgs. Loads are inserted before `anchor`, an operation of the kernel's entry
  /// block.
  Arguments(Emitter &e, Value block, mlir::Operation *anchor) : e(e), block(block), anchor(anchor) {}

  Value headsQ() { return int32(offsetof(KernelArgs, headsQ)); }
  Value headsKV() { return int32(offsetof(KernelArgs, headsKV)); }
  Value seqQ() { return int32(offsetof(KernelArgs, seqQ)); }
  Value seqKV() { return int32(offsetof(KernelArgs, seqKV)); }
  Value scale() { return field(offsetof(KernelArgs, scale), e.f32); }

  /// True for lse, lse_rest and delta: one f32 per row, (batch, headsQ, seqQ).
  static bool isRowVector(llvm::StringRef tensor) {
    return tensor == "lse" || tensor == "lse_rest" || tensor == "delta";
  }
  /// True for tensors whose rows are keys.
  static bool isAlongKeys(llvm::StringRef tensor) {
    return tensor == "k" || tensor == "v" || tensor == "dk" || tensor == "dv";
  }
  /// Length, in rows, of a tensor: 0 for an lse_rest that the caller left out, of which every row is then past the end.
  Value length(llvm::StringRef tensor);

  /// `batchEntry` and `head` are i64. Fails for a name that is no tensor.
  std::optional<HeadView> view(llvm::StringRef tensor, Value batchEntry, Value head, int64_t elementBytes);
  /// The part of table number `index` that batch entry `batchEntry` reads; a null entry for tables without a batch
  /// axis.
  TableView table(int64_t index, Value batchEntry);

  /// Address of the state that part `part` of `parts` leaves of the q tile number `tile`, one of ceil(seqQ / rows);
  /// a state takes `bytes`. All i64.
  Value state(Value batchEntry, Value head, Value tile, int64_t rows, Value part, int64_t parts, int64_t bytes);

private:
  Value field(int64_t offset, Type type);
  Value int32(int64_t offset);

  Emitter &e;
  Value block;
  mlir::Operation *anchor;
  llvm::DenseMap<int64_t, Value> known; ///< By offset
};

} // namespace tilewright::cpu
