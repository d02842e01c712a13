// A caller's tensors as kernels take them.
#pragma once

#include "CHandles.h"
#include "tilewright/KernelArgs.h"
#include <vector>

namespace tilewright::c {

/// Memory of one launch on the CPU: extents of its tables.
using TableExtents = std::vector<std::vector<int32_t>>;

/// Sizes and scale alone, from the shapes of q and k.
Expected<KernelArgs> sizesOf(const tw_attention &attention, const tw_attention_args &given);

/// All that a direction's kernels read and write, the workspace too. Every tensor must have the problem's dtype, lie on
/// its device and fit the others.
Expected<KernelArgs> argumentsOf(const tw_attention &attention, const tw_attention_args &given, Direction direction,
                                 TableExtents &extents);

} // namespace tilewright::c
