// The sequence of passes from a problem to the IR a target's code is made from.
#pragma once

#include "tilewright/plan/KernelPlan.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Pass/Pass.h"
#include <functional>
#include <memory>

namespace tilewright {

/// Called with a stage's name ("problem", "classify-tiles", "tile", ...) and its module, for dumps.
using StageObserver = std::function<void(std::string_view stage, mlir::ModuleOp module)>;

/// An MLIR context with the dialects that the compiler uses. Single-threaded; every compile has its own.
std::unique_ptr<mlir::MLIRContext> makeCompilerContext();

/// Problem level with tile functions: build, differentiate, classify, clean up.
Expected<mlir::OwningOpRef<mlir::ModuleOp>> buildClassified(mlir::MLIRContext &context, const Problem &problem,
                                                            const StageObserver &observer = {});

/// Tile level: the above, then tw-tile with the plan's role and tile sizes.
Expected<mlir::OwningOpRef<mlir::ModuleOp>> buildTiled(mlir::MLIRContext &context, const KernelPlan &plan,
                                                       const StageObserver &observer = {});

/// Runs passes and turns MLIR's diagnostics into an Error. `stage` names the step in messages and dumps.
Status runPasses(mlir::ModuleOp module, std::string_view stage, const StageObserver &observer,
                 llvm::ArrayRef<std::function<std::unique_ptr<mlir::Pass>()>> passes);

} // namespace tilewright
