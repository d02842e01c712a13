// Schedules of the kernels around a forward or backward pass that walk over nothing. Every GPU family shares them.
#pragma once

#include "KernelPieces.h"

namespace tilewright {

/// delta = rowsum(dO * O), the softmax gradient's row constant (FlashAttention-2, algorithm 2, line 4).
void scheduleDelta(tw::KernelOp kernel, const ScheduleOptions &options);

/// dQ from the sums that a fused kernel left in global memory.
void scheduleConvert(tw::KernelOp kernel, const ScheduleOptions &options);

/// O and LSE from the states that the parts of a split forward left in global memory.
void scheduleMerge(tw::KernelOp kernel, const ScheduleOptions &options);

} // namespace tilewright
