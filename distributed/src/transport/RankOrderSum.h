// Sums of one element a rank, added in the order of ranks: what makes reductions the same bits everywhere.
#pragma once

#include "tilewright/tensor/ElementType.h"
#include <span>

namespace tilewright::dist {

/// to[i] = parts[0][i] + parts[1][i] + ..., in fp32 for F32 and BF16 (rounded once), in fp64 for F64. `to` may be one
/// of the parts. Other element types are not summed.
void sumInRankOrder(std::span<const void *const> parts, void *to, int64_t elements, ElementType type);

} // namespace tilewright::dist
