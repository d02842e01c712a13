// Element types of host tensors: the storage types of attention, int32 for tables, float64 for references.
#pragma once

#include "tilewright/plan/DType.h"
#include <cstdint>
#include <string_view>

namespace tilewright {

enum class ElementType { F32, F16, BF16, I32, F64 };

std::string_view toString(ElementType type); ///< "float32", "float16", "bfloat16", "int32", "float64"

constexpr int64_t sizeInBytes(ElementType type) {
  switch (type) {
  case ElementType::F64:
    return 8;
  case ElementType::F32:
  case ElementType::I32:
    return 4;
  case ElementType::F16:
  case ElementType::BF16:
    return 2;
  }
  return 0;
}

constexpr ElementType elementType(DType dtype) {
  switch (dtype) {
  case DType::F16:
    return ElementType::F16;
  case DType::BF16:
    return ElementType::BF16;
  case DType::F32:
    break;
  }
  return ElementType::F32;
}

/// Distance between neighbouring values of the type around `magnitude` (the spacing of subnormals below the smallest
/// normal value). For F32, F16, BF16 and F64; 1 for I32.
double ulp(ElementType type, double magnitude);
/// Largest finite value.
double maxFinite(ElementType type);

} // namespace tilewright
