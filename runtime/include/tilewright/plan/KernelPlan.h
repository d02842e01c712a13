// One kernel, decided: Problem + Schedule + Target + role. Its canonical text is the cache key's first ingredient.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/plan/Schedule.h"

namespace tilewright TILEWRIGHT_PUBLIC {

struct KernelPlan {
  Problem problem;
  Schedule schedule;
  Target target;
  KernelRole role = KernelRole::Forward;

  bool operator==(const KernelPlan &) const = default;

  /// The overrides applied to the best default schedule that fits them, validated. Convert's schedule follows from the
  /// Fused kernel of the same problem, target and overrides, Merge's from the Forward kernel.
  static Expected<KernelPlan> make(const Problem &problem, const Target &target, KernelRole role,
                                   const ScheduleOverrides &overrides = {});

  Status validate() const;

  /// Everything generated code depends on and nothing else (no lengths, strides or scale), one `name=value` a line.
  std::string canonicalText() const;
  /// SHA-256 of canonicalText(), 64 hex digits.
  std::string hash() const;
  /// A readable C identifier, the kernel's symbol: "tw_forward_bf16_d128_m128n64s2w4_1a2b3c4d".
  std::string symbol() const;
};

void to_json(nlohmann::json &json, const KernelPlan &plan);
Expected<KernelPlan> kernelPlanFromJson(const nlohmann::json &json);

/// A plan and the one that goes with it, in launch order: Merge after a Forward that splits keys, Convert after Fused.
std::vector<KernelPlan> withFollower(KernelPlan plan);

/// SHA-256 of some bytes as 64 hex digits.
std::string sha256Hex(std::string_view bytes);

} // namespace tilewright
