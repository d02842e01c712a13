// A problem as C states it.
#pragma once

#include "tilewright.h"
#include "tilewright/plan/Schedule.h"

namespace tilewright::c {

Expected<Problem> problemOf(const tw_problem *given);
Expected<Problem> problemOf(const char *json);
/// A schedule's text or JSON; null and "" override nothing.
Expected<ScheduleOverrides> overridesOf(const char *schedule);

} // namespace tilewright::c
