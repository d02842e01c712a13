// Element types of tensors and their memory layouts.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/Export.h"
#include <cstdint>
#include <string_view>

namespace tilewright TILEWRIGHT_PUBLIC {

/// Storage type of q, k, v, o and their gradients. Accumulation is always in fp32.
enum class DType { F32, F16, BF16 };

/// Order of a 4-D tensor's dimensions in memory: (batch, seq, heads, dim) or (batch, heads, seq, dim).
enum class Layout { BSHD, BHSD };

std::string_view toString(DType dtype);   ///< "fp32", "fp16", "bf16"
std::string_view toString(Layout layout); ///< "bshd", "bhsd"
Expected<DType> parseDType(std::string_view text);
Expected<Layout> parseLayout(std::string_view text);
inline int64_t sizeInBytes(DType dtype) { return dtype == DType::F32 ? 4 : 2; }

} // namespace tilewright
