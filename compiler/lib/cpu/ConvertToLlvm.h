// The last step inside MLIR: everything that tw-lower-to-cpu leaves -> the LLVM dialect.
#pragma once

#include "mlir/IR/BuiltinOps.h"

namespace tilewright::cpu {

/// Converts arith, math, scf, vector and func operations in one go. Diagnostics name an operation that remains.
mlir::LogicalResult convertToLlvm(mlir::ModuleOp module);

} // namespace tilewright::cpu
