#include "tilewright/Attention.h"
#include "tilewright/cuda/DeviceMemory.h"
#include <fmt/format.h>

namespace tilewright {
namespace {

/// Parts of a workspace start at multiples of this.
constexpr int64_t kAlignment = 64;
constexpr int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t deltaBytes(const KernelArgs &args) { return int64_t{args.batch} * args.headsQ * args.seqQ * 4; }

} // namespace

Expected<Attention> Attention::prepare(Context &context, const Problem &problem, const Target &target,
                                       const ScheduleOverrides &overrides, const PrepareOptions &options) {
  Expected<std::vector<PlanChoice>> choices = context.choose(problem, target, overrides, options.device);
  if (!choices) return propagate(choices);
  return prepare(context, problem, std::move(*choices), options);
}

Expected<Attention> Attention::prepare(Context &context, const Problem &problem, std::vector<PlanChoice> choices,
                                       const PrepareOptions &options) {
  Attention attention;
  attention.stated = problem;
  attention.choiceList = std::move(choices);
  for (const PlanChoice &choice : attention.choiceList) {
    Expected<Kernel> kernel = context.prepare(choice.plan, options);
    if (!kernel) return propagate(kernel);
    attention.kernelList.push_back(std::move(*kernel));
    if (isForward(choice.plan.role)) ++attention.forwardCount;
  }
  if (attention.kernelList.empty()) return fail(Stage::Plan, "attention: expected the plans of a problem, found none");
  if (attention.target().isCpu()) return attention;
  Expected<std::shared_ptr<const cuda::Device>> device = context.device(options.device);
  if (!device) return propagate(device);
  attention.device = std::move(*device);
  return attention;
}

std::span<const Kernel> Attention::kernels(Direction direction) const {
  const std::span<const Kernel> all = kernelList;
  return direction == Direction::Forward ? all.first(forwardCount) : all.subspan(forwardCount);
}

int64_t Attention::workspaceBytes(Direction direction, const KernelArgs &args) const {
  if (direction == Direction::Forward) return partialsBytes(kernelList.front().plan(), args);
  int64_t bytes = kernels(direction).empty() ? 0 : padded(deltaBytes(args));
  for (const Kernel &kernel : kernels(direction))
    if (kernel.plan().role == KernelRole::Fused) bytes += dqSumsBytes(kernel.plan(), args);
  return bytes;
}

void Attention::useWorkspace(Direction direction, void *workspace, KernelArgs &args) const {
  if (direction == Direction::Forward) {
    args.partials = static_cast<float *>(workspace);
    return;
  }
  args.delta = static_cast<float *>(workspace);
  args.dqSums = reinterpret_cast<float *>(static_cast<char *>(workspace) + padded(deltaBytes(args)));
}

Status Attention::launch(const Kernel &kernel, void *stream, const KernelArgs &args) const {
  if (!device) return kernel.run(args);
  if (kernel.plan().role == KernelRole::Fused && args.dqSums)
    if (Status cleared = cuda::fill(*device, args.dqSums, 0, dqSumsBytes(kernel.plan(), args), stream); !cleared)
      return cleared;
  return kernel.launch(stream, args);
}

Status Attention::forward(void *stream, const KernelArgs &args) const {
  for (const Kernel &kernel : kernels(Direction::Forward))
    if (Status status = launch(kernel, stream, args); !status) return status;
  return {};
}

Status Attention::backward(void *stream, const KernelArgs &args) const {
  if (stated.direction != Direction::Backward)
    return fail(Stage::Launch, "backward: the problem was prepared without gradients",
                "prepare it with the direction backward");
  for (const Kernel &kernel : kernels(Direction::Backward))
    if (Status status = launch(kernel, stream, args); !status) return status;
  return {};
}

} // namespace tilewright
