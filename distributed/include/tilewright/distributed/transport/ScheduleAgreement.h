// One choice of schedules for all ranks. Each rank's tuned store may hold something else, and ranks that compute with
// different tiles would differ in last bits: rank 0 chooses, the rest follow.
#pragma once

#include "tilewright/distributed/transport/Transport.h"
#include "tilewright/tuning/ScheduleChoice.h"
#include <functional>

namespace tilewright::dist {

/// All ranks call it; rank 0 alone calls `choose`. Every rank gets rank 0's plans with its own `target`, or an error that
/// all of them get: rank 0 could not choose, or some rank's target cannot run what was chosen.
Expected<std::vector<PlanChoice>> chooseTogether(Transport &transport, const Target &target,
                                                 const std::function<Expected<std::vector<PlanChoice>>()> &choose);

} // namespace tilewright::dist
