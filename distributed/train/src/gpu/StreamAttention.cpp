#include "gpu/StreamBackend.h"
#include <algorithm>
#include <iterator>

namespace tilewright::train {
namespace {

TensorRef reference(const Matrix &matrix, const AttentionShape &shape, int64_t length) {
  return {matrix.data, length * matrix.stride, shape.headDim, matrix.stride};
}

} // namespace

Problem StreamBackend::problemOf(const AttentionShape &shape, Direction direction) const {
  Problem problem;
  problem.batch = shape.batch;
  problem.headsQ = problem.headsKV = shape.heads;
  problem.seqQ = shape.queries;
  problem.seqKV = shape.keys;
  problem.dimQK = problem.dimV = shape.headDim;
  problem.dtype = options.type == ElementType::F32 ? DType::F32 : DType::BF16;
  problem.causal = true;
  problem.direction = direction;
  return problem;
}

Expected<Kernel> StreamBackend::kernel(const AttentionShape &shape, KernelRole role) {
  const auto key = std::tuple(shape.headDim, role);
  if (auto found = attentionKernels.find(key); found != attentionKernels.end()) return found->second;
  // Batch, heads and lengths are arguments: the kernel that suits the first call serves all.
  const Direction direction = role == KernelRole::Forward ? Direction::Forward : Direction::Backward;
  Expected<ScheduleOverrides> whole = ScheduleOverrides::parse("split_kv=1"); // and so it needs no merge
  if (!whole) return propagate(whole);
  Expected<KernelPlan> plan = KernelPlan::make(problemOf(shape, direction), target, role, *whole);
  if (!plan) return propagate(plan);
  for (const PlanChoice &choice : schedules)
    if (choice.plan.role == role && choice.plan.problem.dimQK == shape.headDim) plan->schedule = choice.plan.schedule;
  Expected<Kernel> prepared = context->prepare(*plan, {.device = options.device, .stream = stream()});
  if (!prepared) return propagate(prepared);
  attentionKernels.emplace(key, *prepared);
  return *prepared;
}

KernelArgs StreamBackend::arguments(const AttentionShape &shape, const AttentionTensors &tensors) const {
  KernelArgs args = argsFor(problemOf(shape, Direction::Forward));
  args.q = reference(tensors.q, shape, shape.queries);
  args.k = reference(tensors.k, shape, shape.keys);
  args.v = reference(tensors.v, shape, shape.keys);
  args.o = reference(tensors.o, shape, shape.queries);
  args.lse = tensors.lse;
  args.lseRest = tensors.lseRest;
  return args;
}

std::vector<KernelRole> StreamBackend::backwardRoles(const AttentionShape &shape) const {
  Backward strategy = options.attention;
  // Not every type and head has a fused kernel.
  if (strategy == Backward::Fused) strategy = defaultBackward(problemOf(shape, Direction::Backward), target);
  return rolesOf(Direction::Backward, strategy);
}

Status StreamBackend::prepareAttention(const AttentionShape &shape, bool gradients) {
  std::vector<KernelRole> roles = {KernelRole::Forward};
  if (gradients) std::ranges::copy(backwardRoles(shape), std::back_inserter(roles));
  for (KernelRole role : roles)
    if (Expected<Kernel> prepared = kernel(shape, role); !prepared) return propagate(prepared);
  return {};
}

Status StreamBackend::attention(const AttentionShape &shape, const AttentionTensors &tensors) {
  Expected<Kernel> forward = kernel(shape, KernelRole::Forward);
  if (!forward) return propagate(forward);
  return forward->launch(stream(), arguments(shape, tensors));
}

Status StreamBackend::attentionBackward(const AttentionShape &shape, const AttentionTensors &tensors,
                                        const AttentionGradients &gradients) {
  KernelArgs args = arguments(shape, tensors);
  args.dO = reference(gradients.dO, shape, shape.queries);
  args.dQ = reference(gradients.dQ, shape, shape.queries);
  args.dK = reference(gradients.dK, shape, shape.keys);
  args.dV = reference(gradients.dV, shape, shape.keys);
  args.delta = gradients.delta;
  for (KernelRole role : backwardRoles(shape)) {
    Expected<Kernel> backward = kernel(shape, role);
    if (!backward) return propagate(backward);
    if (role == KernelRole::Fused) {
      const int64_t bytes = dqSumsBytes(backward->plan(), args);
      Expected<void *> sums = scratch(bytes, DqSums);
      if (!sums) return propagate(sums);
      if (Status status = clear(*sums, bytes); !status) return status;
      args.dqSums = static_cast<float *>(*sums);
    }
    if (Status status = backward->launch(stream(), args); !status) return status;
  }
  return {};
}

} // namespace tilewright::train
