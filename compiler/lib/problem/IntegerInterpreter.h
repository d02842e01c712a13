// Runs a func.func of integer arithmetic on the host: enough of arith to evaluate what tw-classify-tiles builds.
#pragma once

#include "tilewright/dialect/Tw.h"
#include "tilewright/expr/Evaluator.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tilewright {

class IntegerInterpreter {
public:
  /// `tables` by index, `batchStrides` the distance of two batch entries in elements (0 for tables without batch axis).
  IntegerInterpreter(mlir::func::FuncOp function, const std::vector<expr::TableData> &tables,
                     const std::vector<int64_t> &batchStrides);

  /// The function's results for these arguments. The view is valid until the next call.
  llvm::ArrayRef<int64_t> call(llvm::ArrayRef<int64_t> arguments);

private:
  int64_t evaluate(mlir::Operation &op);
  void evaluateTableBounds(mlir::Operation &op);
  int64_t value(mlir::Value v) const { return slots[index.lookup(v)]; }

  mlir::func::FuncOp function;
  const std::vector<expr::TableData> &tables;
  const std::vector<int64_t> &batchStrides;
  llvm::DenseMap<mlir::Value, unsigned> index; ///< Where each value lives in `slots`.
  std::vector<int64_t> slots;
  llvm::SmallVector<int64_t, 4> results;
};

} // namespace tilewright
