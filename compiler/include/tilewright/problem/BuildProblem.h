// Problem -> problem-level IR: one tw.attention whose mask and score regions hold the problem's expressions.
#pragma once

#include "tilewright/plan/Problem.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace tilewright {

/// Name of the tw.attention op in the module.
inline constexpr const char *kAttentionName = "attention";

/// The module with its tw.attention, or the first expression's parse error. Positions are i32 where every
/// intermediate of the mask and score fits for all sequences up to kMaxSequence, else i64.
Expected<mlir::OwningOpRef<mlir::ModuleOp>> buildProblem(mlir::MLIRContext &context, const Problem &problem);

} // namespace tilewright
