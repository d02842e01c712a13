// Which kernels compute gradients.
#include "ScheduleLimits.h"
#include "tilewright/plan/KernelPlan.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright {

std::string_view toString(Backward strategy) { return strategy == Backward::Fused ? "fused" : "two_kernel"; }

Expected<Backward> parseBackward(std::string_view text) {
  for (Backward strategy : {Backward::TwoKernel, Backward::Fused})
    if (text == toString(strategy)) return strategy;
  return fail(Stage::Input, fmt::format("expected two_kernel or fused, found \"{}\"", text),
              "fused is faster; two_kernel gives the same bits in every run");
}

std::vector<KernelRole> rolesOf(Direction direction, Backward strategy) {
  if (direction == Direction::Forward) return {KernelRole::Forward};
  if (strategy == Backward::Fused) return {KernelRole::Delta, KernelRole::Fused, KernelRole::Convert};
  return {KernelRole::Delta, KernelRole::DKV, KernelRole::DQ};
}

Backward defaultBackward(const Problem &problem, const Target &target) {
  constexpr int64_t widestMeasured = 128;
  if (target.isCpu() || problem.dtype == DType::F32 || std::max(problem.dimQK, problem.dimV) > widestMeasured)
    return Backward::TwoKernel;
  // Later candidates have not been measured against two kernels: narrow q tiles add to dQ in global memory more often.
  const Schedule measured = candidates(problem, target, KernelRole::Fused).front();
  return measured.validate(problem, target, KernelRole::Fused) ? Backward::Fused : Backward::TwoKernel;
}

Expected<std::vector<KernelRole>> backwardRoles(const Problem &problem, const Target &target,
                                                const ScheduleOverrides &overrides) {
  if (auto strategy = overrides.backward()) {
    if (*strategy == Backward::Fused)
      if (Status status = checkFused(problem, target); !status) return propagate(status);
    return rolesOf(Direction::Backward, *strategy);
  }
  Backward strategy = defaultBackward(problem, target);
  if (strategy == Backward::Fused && !KernelPlan::make(problem, target, KernelRole::Fused, overrides))
    strategy = Backward::TwoKernel;
  return rolesOf(Direction::Backward, strategy);
}

} // namespace tilewright
