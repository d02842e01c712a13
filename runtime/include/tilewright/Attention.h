// Any attention problem, ready to run: all of its kernels, the order they go in, and the memory between them. What
// hosts embed; a single Kernel is for those that put launches together by themselves.
#pragma once

#include "tilewright/Context.h"
#include "tilewright/Export.h"

namespace tilewright TILEWRIGHT_PUBLIC {

/// A cheap, copyable handle, thread-safe as Kernel is. It may outlive its Context.
class Attention {
public:
  /// Chooses the plans (Context::choose) and prepares every kernel. Batch, lengths and scale of the problem decide defaults only: they may differ
  /// from launch to launch, while a kernel that suits other lengths better takes another prepare().
  static Expected<Attention> prepare(Context &context, const Problem &problem, const Target &target,
                                     const ScheduleOverrides &overrides = {}, const PrepareOptions &options = {});
  /// By plans that were chosen elsewhere: all of the problem's, in launch order.
  static Expected<Attention> prepare(Context &context, const Problem &problem, std::vector<PlanChoice> choices,
                                     const PrepareOptions &options = {});

  const Problem &problem() const { return stated; }
  const Target &target() const { return kernelList.front().plan().target; }
  /// In launch order.
  std::span<const Kernel> kernels() const { return kernelList; }
  std::span<const Kernel> kernels(Direction direction) const;
  /// Where the kernels' schedules came from, in the order of kernels().
  std::span<const PlanChoice> choices() const { return choiceList; }

  /// Bytes of scratch memory that a direction's kernels hand each other, for the sizes in `args`. Forward: 0 unless
  /// keys are split. Backward: delta and the sums of dQ.
  int64_t workspaceBytes(Direction direction, const KernelArgs &args) const;
  /// Points `args` into a workspace of that many bytes, 64-byte aligned; its contents do not matter.
  void useWorkspace(Direction direction, void *workspace, KernelArgs &args) const;

  /// Computes O and LSE. CUDA: enqueues on `stream` (a CUstream; null is the legacy default stream) and returns; may be
  /// captured. CPU: returns when it is done, `stream` is ignored.
  Status forward(void *stream, const KernelArgs &args) const;
  /// Computes dQ, dK and dV from what forward() left in O, LSE and, if given, lseRest. Only for Direction::Backward.
  Status backward(void *stream, const KernelArgs &args) const;
  /// One of kernels(), as forward() and backward() launch it: sums that it adds to are cleared first.
  Status launch(const Kernel &kernel, void *stream, const KernelArgs &args) const;

private:
  Attention() = default;

  Problem stated;
  std::vector<PlanChoice> choiceList;
  std::vector<Kernel> kernelList;
  size_t forwardCount = 0;
  std::shared_ptr<const cuda::Device> device; ///< Null on the CPU.
};

} // namespace tilewright
