// tw-schedule-sm90: orders a tile-level forward kernel for Hopper's copy engine and warp group products.
#include "Sm90Scheduler.h"
#include "tilewright/passes/Passes.h"

using namespace mlir;

namespace tilewright {
#define GEN_PASS_DEF_SCHEDULESM90
#include "tilewright/passes/Passes.h.inc"

LogicalResult Sm90Scheduler::run() {
  if (kernel.getRole() != "forward") return kernel.emitOpError("tw-schedule-sm90 schedules forward kernels");
  if (options.packedHeads != 1 && options.packedHeads != static_cast<int64_t>(kernel.getGroup()))
    return kernel.emitOpError("a q tile holds one head or all that share a kv head");
  if (ownRows != options.warps * 16) return kernel.emitOpError("each warp owns 16 rows of the q tile");
  begin();
  machine.setThreads((groups + 1) * 128);
  machine.setLaunchType("tw::Sm90Launch");
  declareConstants();
  declareProducts();
  b.name("shared", b.value("tw::swizzledSharedBase", {}, b.object("tw::UInt32")));
  group = b.name("group", b.value("tw::warpGroupIndex", {}, b.i32()));
  setUpBarriers();
  b.ifTrue(b.expression("$0 == kGroups", {group}, b.getI1Type()), [&] { produce(); });
  b.ifTrue(b.expression("$0 != kGroups", {group}, b.getI1Type()), [&] { consume(); });
  finish();
  return success();
}

namespace {

struct ScheduleSm90Pass : impl::ScheduleSm90Base<ScheduleSm90Pass> {
  using ScheduleSm90Base::ScheduleSm90Base;

  void runOnOperation() override {
    ScheduleOptions options{stages,
                            warps,
                            /*columnWarps=*/1,
                            /*minBlocks=*/1,
                            longestFirst,
                            rescaleThreshold,
                            /*rowWarpsOfDQ=*/0,
                            packedHeads};
    Sm90Options hopper{overlapsWithin, overlapsBetween, queryStages, stagedChunks};
    SmallVector<tw::KernelOp> kernels(getOperation().getOps<tw::KernelOp>());
    for (tw::KernelOp kernel : kernels)
      if (failed(Sm90Scheduler(kernel, options, hopper).run())) return signalPassFailure();
  }
};

} // namespace
} // namespace tilewright
