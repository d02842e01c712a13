// What a rank's training has allocated, against what its plan foretold.
#pragma once

#include "tilewright/distributed/plan/PlanCost.h"
#include "tilewright/train/Transformer.h"

namespace tilewright::train {

/// Bytes that engine and model have asked their device and backend for, by category. What a transport or a library
/// keeps for itself is not in it. An error names the category whose bytes are not those of predictMemory: then the
/// plan, by which people choose strategies, is wrong.
Expected<dist::MemoryByCategory> allocatedMemory(dist::Engine &engine, const Transformer &model);

} // namespace tilewright::train
