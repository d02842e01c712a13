#include "tilewright/passes/Pipeline.h"

#include "tilewright/passes/Passes.h"
#include "tilewright/problem/BuildProblem.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"
#include <fmt/format.h>

using namespace mlir;

namespace tilewright {

std::unique_ptr<MLIRContext> makeCompilerContext() {
  auto context = std::make_unique<MLIRContext>(MLIRContext::Threading::DISABLED);
  context->loadDialect<tw::TwDialect, arith::ArithDialect, func::FuncDialect, math::MathDialect, scf::SCFDialect,
                       vector::VectorDialect, LLVM::LLVMDialect>();
  return context;
}

Status runPasses(ModuleOp module, std::string_view stage, const StageObserver &observer,
                 ArrayRef<std::function<std::unique_ptr<Pass>()>> passes) {
  std::string diagnostics;
  ScopedDiagnosticHandler handler(module.getContext(), [&](Diagnostic &diagnostic) {
    diagnostics += diagnostic.str() + "\n";
    return success();
  });
  PassManager manager(module.getContext(), ModuleOp::getOperationName());
  for (const auto &make : passes) manager.addPass(make());
  if (failed(manager.run(module)))
    return fail(Stage::Emit, fmt::format("pass {} failed: {}", stage, diagnostics.substr(0, diagnostics.find('\n'))),
                "this is an error of the compiler; `tilewright compile --emit DIR` keeps the IR of every stage",
                diagnostics);
  if (observer) observer(stage, module);
  return {};
}

Expected<OwningOpRef<ModuleOp>> buildClassified(MLIRContext &context, const Problem &problem,
                                                const StageObserver &observer) {
  Expected<OwningOpRef<ModuleOp>> module = buildProblem(context, problem);
  if (!module) return module;
  if (observer) observer("problem", module->get());
  Status ran = runPasses(module->get(), "classify-tiles", observer,
                         {[] { return createDifferentiateScore(); }, [] { return createClassifyTiles(); },
                          [] { return createCanonicalizerPass(); }, [] { return createCSEPass(); }});
  if (!ran) return propagate(ran);
  return module;
}

Expected<OwningOpRef<ModuleOp>> buildTiled(MLIRContext &context, const KernelPlan &plan,
                                           const StageObserver &observer) {
  Expected<OwningOpRef<ModuleOp>> module = buildClassified(context, plan.problem, observer);
  if (!module) return module;
  TileOptions options;
  options.role = toString(plan.role);
  options.tileQ = plan.schedule.tileQ;
  options.tileKV = plan.schedule.tileKV;
  options.splitKV = plan.schedule.splitKV;
  options.symbol = plan.symbol();
  Status ran = runPasses(module->get(), "tile", observer, {[&] { return createTile(options); }, [] { return createCSEPass(); },
                          [] { return createSymbolDCEPass(); }}); // a kernel keeps the functions it uses
  if (!ran) return propagate(ran);
  return module;
}

} // namespace tilewright
