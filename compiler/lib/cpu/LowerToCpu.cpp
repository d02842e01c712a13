// tw-lower-to-cpu: tile level -> vectors and loops (Passes.td says what comes out).
#include "KernelLowering.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "tilewright/passes/Passes.h"

using namespace mlir;

namespace tilewright {
#define GEN_PASS_DEF_LOWERTOCPU
#include "tilewright/passes/Passes.h.inc"

namespace {

struct LowerToCpuPass : impl::LowerToCpuBase<LowerToCpuPass> {
  using LowerToCpuBase::LowerToCpuBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (vectorBits != 128 && vectorBits != 256 && vectorBits != 512) {
      module.emitError("tw-lower-to-cpu: vector-bits must be 128, 256 or 512, found ") << int64_t{vectorBits};
      return signalPassFailure();
    }
    SmallVector<tw::KernelOp> kernels(module.getOps<tw::KernelOp>());
    for (tw::KernelOp kernel : kernels)
      if (failed(cpu::KernelLowering(kernel, vectorBits).lower())) return signalPassFailure();
    // Masks, scores and bounds are part of the kernels now.
    for (func::FuncOp function : llvm::make_early_inc_range(module.getOps<func::FuncOp>()))
      if (function.isPrivate() && SymbolTable::symbolKnownUseEmpty(function, module)) function.erase();
  }
};

} // namespace
} // namespace tilewright
