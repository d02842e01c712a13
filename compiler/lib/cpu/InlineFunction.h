// Masks, scores and tile bounds are functions of single positions. Here they become code inside a kernel: scalar code,
// or vector code for a whole vector of own rows at once.
#pragma once

#include "Arguments.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"

namespace tilewright::cpu {

/// Where the lanes of a vector argument lie: at consecutive positions from `first` on, in a sequence of `length`
/// positions (both i64). A table read at such an argument is one load; lanes past the end read 0.
struct LaneRange {
  Value first, length;
};

/// A function's body, expanded operation by operation. Operations whose operands are all known at `bindArguments` are
/// emitted there, once; the rest at each `evaluate`. So what depends on the own rows alone stays out of the inner loop.
class InlineFunction {
public:
  InlineFunction(Emitter &e, Arguments &arguments, mlir::func::FuncOp function)
      : e(e), arguments(arguments), function(function) {}

  /// `known[i]` is argument i, null where it is given later. Emits what can be emitted.
  mlir::LogicalResult bindArguments(mlir::ValueRange known, std::optional<LaneRange> lanes = std::nullopt);
  /// Emits the rest; `late` are the arguments that were null, in order. Fails at an operation that has no CPU form.
  mlir::FailureOr<Emitter::Carried> evaluate(mlir::ValueRange late = {});

private:
  mlir::LogicalResult expand(mlir::IRMapping &mapping);
  mlir::FailureOr<Emitter::Carried> expandOperation(mlir::Operation &op, mlir::ValueRange operands);
  Value readTable(int64_t table, Type element, mlir::ValueRange indices);
  Emitter::Carried tableBounds(mlir::Operation &op, mlir::ValueRange operands);
  Value floorDivide(Value a, Value b);

  Emitter &e;
  Arguments &arguments;
  mlir::func::FuncOp function;
  mlir::IRMapping bound;
  std::optional<LaneRange> lanes;
};

} // namespace tilewright::cpu
