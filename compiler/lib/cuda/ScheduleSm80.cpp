// tw-schedule-sm80: orders a tile-level kernel for GPUs with cp.async and mma.sync.
#include "Sm80Scheduler.h"
#include "WalklessKernels.h"
#include "tilewright/passes/Passes.h"

using namespace mlir;

namespace tilewright {
#define GEN_PASS_DEF_SCHEDULESM80
#include "tilewright/passes/Passes.h.inc"

namespace {

struct ScheduleSm80Pass : impl::ScheduleSm80Base<ScheduleSm80Pass> {
  using ScheduleSm80Base::ScheduleSm80Base;

  void runOnOperation() override {
    ScheduleOptions options{stages,           warps,        columnWarps, minBlocks, longestFirst,
                            rescaleThreshold, rowWarpsOfDQ, packedHeads};
    SmallVector<tw::KernelOp> kernels(getOperation().getOps<tw::KernelOp>());
    for (tw::KernelOp kernel : kernels) {
      if (kernel.getRole() == "delta")
        scheduleDelta(kernel, options);
      else if (kernel.getRole() == "convert")
        scheduleConvert(kernel, options);
      else if (kernel.getRole() == "merge")
        scheduleMerge(kernel, options);
      else if (failed(Sm80Scheduler(kernel, options).run()))
        return signalPassFailure();
    }
  }
};

} // namespace
} // namespace tilewright
