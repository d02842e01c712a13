// The values that the fields of a schedule are tried with: every combination of them is a candidate until pruned.
#pragma once

#include "tilewright/plan/Schedule.h"

namespace tilewright::tune {

struct TuningSpace {
  std::vector<int> tileQ, tileKV, stages, warps, columnWarps, blocksPerSM, splitKV;
  std::vector<Order> orders;
  std::vector<Overlap> overlaps;
  std::vector<double> rescaleThresholds;
  std::vector<bool> packings = {false}; ///< pack_heads

  /// What is worth trying for a kernel, by its family (CPU, sm_80, sm_90a), the mask and the lengths. Convert and Merge
  /// have no space of their own: they follow Fused and Forward.
  static TuningSpace of(const Problem &problem, const Target &target, KernelRole role);

  /// How many combinations there are.
  size_t combinations() const;
};

/// What a user sets by `--range tile_kv=16:256:16,dq.stages=1|2|3`: LOW:HIGH[:STEP] (step 16 for tiles, else 1) or
/// values with | between them. A kernel's name before the field limits it to that kernel.
class RangeOverrides {
public:
  static Expected<RangeOverrides> parse(std::string_view text);
  /// Replaces the values of the fields that apply to `role`.
  void apply(KernelRole role, TuningSpace &space) const;

private:
  struct Range {
    std::optional<KernelRole> role;
    std::string field;
    std::vector<int> values;
  };
  std::vector<Range> ranges;
};

} // namespace tilewright::tune
