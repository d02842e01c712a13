// Runs a problem's kernels on a target and times them: what `tilewright run` does between reading and writing tensors.
#pragma once

#include "ProblemOptions.h"
#include "tilewright/Attention.h"
#include "tilewright/reference/Verify.h"

namespace tilewright::tool {

/// One kernel of the run.
struct KernelRun {
  Kernel kernel;
  ScheduleOrigin origin = ScheduleOrigin::Default;
  std::string from;        ///< Sizes of the problem that the schedule was measured for, where it is the nearest one's.
  double milliseconds = 0; ///< Median of several launches.
};

struct AttentionRun {
  std::vector<KernelRun> kernels; ///< In launch order: forward, merge where it splits keys, then the gradients'.
  Tensor o, lse, dQ, dK, dV;      ///< Host tensors; gradients are valid for Direction::Backward only.

  const KernelRun &forward() const { return kernels.front(); }
  double forwardMs() const;
  double backwardMs() const;
  bool allHits() const;
  double compileMs() const; ///< Generation and compilation of all kernels; 0 when all came from the cache.
  AttentionOutputs outputs() const;
};

/// Chooses schedules (Context::choose), prepares, runs and times. `device` is a CUDA ordinal, ignored on the CPU.
Expected<AttentionRun> runAttention(Context &context, const ProblemInputs &inputs, const Target &target,
                                    const ScheduleOverrides &overrides, int device = 0);

} // namespace tilewright::tool
