// A parameter's values from the host into an engine, in the engine's type.
#pragma once

#include "tilewright/distributed/engine/Engine.h"

namespace tilewright::train {

/// `values` has the parameter's elements; 16-bit parameters are rounded to nearest.
Status uploadParameter(dist::Engine &engine, int parameter, std::span<const float> values);

} // namespace tilewright::train
