// Values of the IR as C++ expressions.
#pragma once

#include "tilewright/dialect/Tw.h"
#include "llvm/ADT/DenseMap.h"
#include <string>

namespace tilewright {

/// Spelling of a type: int, tw::Int64, float, bool, or an object's.
std::string cudaType(mlir::Type type);

class CudaText {
public:
  /// From now on `value` is written as `text`.
  void name(mlir::Value value, std::string text) { names[value] = std::move(text); }

  /// `position` may lie at `end` or beyond it, where no table is read: the first element stands in.
  void mayExceed(mlir::Value position, mlir::Value end) { ends[position] = end; }

  /// `value` as an expression; operations that were not named are written out in place.
  std::string expression(mlir::Value value) const;
  /// The same without parentheses around the whole.
  std::string bare(mlir::Value value) const;

  /// The call that a micro-op without result is.
  std::string statement(tw::MicroOp op) const { return define(op); }

private:
  std::string define(mlir::Operation *op) const;
  std::string list(mlir::ValueRange values) const;
  std::string tablePosition(mlir::Value position) const;

  llvm::DenseMap<mlir::Value, std::string> names;
  llvm::DenseMap<mlir::Value, mlir::Value> ends;
};

} // namespace tilewright
