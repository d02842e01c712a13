// Where parameters and their gradients lie: one arena, in the order in which gradients arrive, cut into buckets.
#pragma once

#include "tilewright/distributed/plan/Strategy.h"

namespace tilewright::dist {

struct Bucket {
  int64_t begin = 0, count = 0; ///< Elements of the arena, padding included.
  std::vector<int> parameters;  ///< In order of arrival.
};

struct ArenaLayout {
  std::vector<PlanParameter> parameters; ///< In the list's order.
  std::vector<Bucket> buckets;           ///< In order of arrival.
  int64_t elements = 0;

  static Expected<ArenaLayout> make(const ParameterList &parameters, const StrategyOptions &options);
};

} // namespace tilewright::dist
