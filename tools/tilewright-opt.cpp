// tilewright-opt: runs the compiler's passes on IR text, for tests and for looking at what each pass does.
//   tilewright-opt --tw-classify-tiles --tw-tile="role=dq tile-q=64" problem.mlir
#include "tilewright/passes/Passes.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  registry.insert<tilewright::tw::TwDialect, mlir::arith::ArithDialect, mlir::func::FuncDialect, mlir::math::MathDialect,
                  mlir::scf::SCFDialect, mlir::vector::VectorDialect, mlir::LLVM::LLVMDialect>();
  tilewright::registerTilewrightPasses();
  mlir::registerCanonicalizer();
  mlir::registerCSE();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "Tilewright's passes\n", registry));
}
