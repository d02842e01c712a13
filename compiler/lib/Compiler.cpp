#include "tilewright/Compiler.h"

#include "tilewright/cpu/HostObject.h"
#include "tilewright/cuda/EmitCuda.h"
#include "tilewright/passes/Passes.h"
#include "tilewright/plan/Sm90Layout.h"
#include "mlir/IR/AsmState.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;

namespace tilewright {
namespace {

ScheduleSm90Options sm90OptionsOf(const KernelPlan &plan) {
  Sm90Layout layout = sm90Layout(plan.schedule, plan.problem, plan.target.sharedBytesPerBlock);
  ScheduleSm90Options options;
  options.stages = plan.schedule.stages;
  options.warps = plan.schedule.warps;
  options.queryStages = layout.queryStages;
  options.stagedChunks = layout.stagedChunks;
  options.overlapsWithin = overlapsWithin(plan.schedule.overlap);
  options.overlapsBetween = overlapsBetween(plan.schedule.overlap);
  options.longestFirst = plan.schedule.order == Order::LongestFirst;
  options.packedHeads = packedHeads(plan.schedule, plan.problem);
  options.rescaleThreshold = plan.schedule.rescaleThreshold;
  return options;
}

Expected<GeneratedCode> generateCuda(ModuleOp module, const KernelPlan &plan, const StageObserver &observer) {
  ScheduleSm80Options options;
  options.stages = plan.schedule.stages;
  options.warps = plan.schedule.warps;
  options.columnWarps = plan.schedule.columnWarps;
  options.minBlocks = plan.schedule.blocksPerSM;
  options.longestFirst = plan.schedule.order == Order::LongestFirst;
  options.rescaleThreshold = plan.schedule.rescaleThreshold;
  options.packedHeads = packedHeads(plan.schedule, plan.problem);
  if (plan.role == KernelRole::Fused) options.rowWarpsOfDQ = plan.schedule.rowWarpsOfDQ(plan.problem);
  Status ran;
  if (familyOf(plan.problem, plan.target, plan.role) == KernelFamily::Sm90)
    ran = runPasses(module, "schedule-sm90", observer, {[&] { return createScheduleSm90(sm90OptionsOf(plan)); }});
  else
    ran = runPasses(module, "schedule-sm80", observer, {[&] { return createScheduleSm80(options); }});
  if (!ran) return propagate(ran);
  Expected<std::string> source = emitCuda(module);
  if (!source) return propagate(source);
  GeneratedCode code;
  code.symbol = plan.symbol();
  code.cudaSource = std::move(*source);
  return code;
}

Expected<GeneratedCode> generateHost(ModuleOp module, const KernelPlan &plan, const Compiler::TextObserver &observer) {
  HostTexts texts;
  Expected<HostObject> object = compileToObject(module, plan.target, plan.symbol(), observer ? &texts : nullptr);
  if (!object) return propagate(object);
  if (observer) {
    observer("lower-to-cpu", texts.lowered);
    observer("llvm", texts.llvm);
    observer("assembly", texts.assembly);
  }
  GeneratedCode code;
  code.symbol = plan.symbol();
  code.object = std::move(object->bytes);
  code.scratchBytes = object->scratchBytes;
  return code;
}

} // namespace

Expected<GeneratedCode> Compiler::generate(const KernelPlan &plan, const TextObserver &observer) {
  StageObserver print;
  if (observer)
    print = [&](std::string_view stage, ModuleOp module) {
      std::string text;
      llvm::raw_string_ostream stream(text);
      module.print(stream);
      observer(stage, text);
    };
  std::unique_ptr<MLIRContext> context = makeCompilerContext();
  Expected<OwningOpRef<ModuleOp>> module = buildTiled(*context, plan, print);
  if (!module) return propagate(module);
  if (plan.schedule.order == Order::LongestFirst && plan.target.isCpu())
    (*module)->walk([&](tw::KernelOp kernel) { kernel->setAttr("longest_first", UnitAttr::get(context.get())); });
  return plan.target.isCpu() ? generateHost(module->get(), plan, observer) : generateCuda(module->get(), plan, print);
}

Expected<std::unique_ptr<HostCode>> Compiler::loadHostCode(std::span<const char> object, const std::string &symbol) {
  return loadObject(object, symbol);
}

std::string Compiler::hostCompiler() { return hostCompilerVersion(); }

} // namespace tilewright
