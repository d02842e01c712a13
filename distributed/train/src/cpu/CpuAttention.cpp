#include "CpuBackend.h"
#include <algorithm>
#include <iterator>

namespace tilewright::train {
namespace {

TensorRef reference(const Matrix &matrix, const AttentionShape &shape, int64_t length) {
  return {matrix.data, length * matrix.stride, shape.headDim, matrix.stride};
}

} // namespace

Expected<Kernel> CpuBackend::kernel(const AttentionShape &shape, KernelRole role) {
  const auto key = std::tuple(shape.headDim, role);
  if (auto found = kernels.find(key); found != kernels.end()) return found->second;
  // Batch, heads and lengths are arguments: one kernel serves training, validation and sampling.
  Problem problem;
  problem.dimQK = problem.dimV = shape.headDim;
  problem.dtype = DType::F32;
  problem.causal = true;
  problem.direction = role == KernelRole::Forward ? Direction::Forward : Direction::Backward;
  Expected<KernelPlan> plan = KernelPlan::make(problem, Target::hostCpu(), role);
  if (!plan) return propagate(plan);
  for (const PlanChoice &choice : schedules)
    if (choice.plan.role == role && choice.plan.problem.dimQK == shape.headDim) plan->schedule = choice.plan.schedule;
  Expected<Kernel> prepared = context->prepare(*plan);
  if (!prepared) return propagate(prepared);
  kernels.emplace(key, *prepared);
  return *prepared;
}

KernelArgs CpuBackend::arguments(const AttentionShape &shape, const AttentionTensors &tensors) {
  Problem problem;
  problem.batch = shape.batch;
  problem.headsQ = problem.headsKV = shape.heads;
  problem.seqQ = shape.queries;
  problem.seqKV = shape.keys;
  problem.dimQK = problem.dimV = shape.headDim;
  KernelArgs args = argsFor(problem);
  args.q = reference(tensors.q, shape, shape.queries);
  args.k = reference(tensors.k, shape, shape.keys);
  args.v = reference(tensors.v, shape, shape.keys);
  args.o = reference(tensors.o, shape, shape.queries);
  args.lse = tensors.lse;
  args.lseRest = tensors.lseRest;
  return args;
}

Status CpuBackend::prepareAttention(const AttentionShape &shape, bool gradients) {
  std::vector<KernelRole> roles = rolesOf(Direction::Forward);
  if (gradients) std::ranges::copy(rolesOf(Direction::Backward), std::back_inserter(roles));
  for (KernelRole role : roles)
    if (Expected<Kernel> prepared = kernel(shape, role); !prepared) return propagate(prepared);
  return {};
}

Status CpuBackend::attention(const AttentionShape &shape, const AttentionTensors &tensors) {
  Expected<Kernel> forward = kernel(shape, KernelRole::Forward);
  if (!forward) return propagate(forward);
  return forward->run(arguments(shape, tensors));
}

Status CpuBackend::attentionBackward(const AttentionShape &shape, const AttentionTensors &tensors,
                                     const AttentionGradients &gradients) {
  KernelArgs args = arguments(shape, tensors);
  args.dO = reference(gradients.dO, shape, shape.queries);
  args.dQ = reference(gradients.dQ, shape, shape.queries);
  args.dK = reference(gradients.dK, shape, shape.keys);
  args.dV = reference(gradients.dV, shape, shape.keys);
  args.delta = gradients.delta;
  for (KernelRole role : rolesOf(Direction::Backward)) {
    Expected<Kernel> backward = kernel(shape, role);
    if (!backward) return propagate(backward);
    if (Status status = backward->run(args); !status) return status;
  }
  return {};
}

} // namespace tilewright::train
