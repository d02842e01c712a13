// Proves a plan before its first step. A plan that passes has no races, cannot deadlock by itself, and trains: every
// forward pass reads parameters that all ranks agree on, every update reads gradients summed over all ranks once.
#pragma once

#include "tilewright/distributed/plan/StepPlan.h"

namespace tilewright::dist {

/// All of the checks below, in this order. An error names the ops and spans involved and says what is missing.
Status checkPlan(const StepPlan &plan);

/// Names, indices, spans, element types and the uses each kind of op must have.
Status checkStructure(const StepPlan &plan);

/// What an engine looks for: arenas called "parameters" and "gradients" that are whole on every rank and in which no
/// two parameters lie on one another, one backward op a parameter, one scale op, one accumulate op if there are several
/// micro-batches, and updates whose gradients are those of the elements they update and whose state is theirs alone.
/// Needs checkStructure.
Status checkRoles(const StepPlan &plan);

/// Events: any two ops that touch the same elements, one of them writing, must be connected by waits and lane order;
/// two consecutive steps are looked at, so reuse of memory by the next step counts. Collectives must be connected to
/// one another too: only then do all ranks start them in one order. Every send has its receive in the same group, and
/// groups are of one piece.
Status checkOrder(const StepPlan &plan);

/// Values: follows what each rank holds of gradients and parameters through two steps, and that each element of each
/// parameter is updated exactly once on every rank that keeps it.
Status checkFlow(const StepPlan &plan);

} // namespace tilewright::dist
