#include "tilewright/tensor/ElementType.h"
#include <cmath>
#include <limits>

namespace tilewright {
namespace {

struct FloatFormat {
  int fractionBits, minExponent, maxExponent;
};

FloatFormat formatOf(ElementType type) {
  switch (type) {
  case ElementType::F16:
    return {10, -14, 15};
  case ElementType::BF16:
    return {7, -126, 127};
  case ElementType::F64:
    return {52, -1022, 1023};
  case ElementType::F32:
  case ElementType::I32:
    break;
  }
  return {23, -126, 127};
}

} // namespace

std::string_view toString(ElementType type) {
  switch (type) {
  case ElementType::F32:
    return "float32";
  case ElementType::F16:
    return "float16";
  case ElementType::BF16:
    return "bfloat16";
  case ElementType::I32:
    return "int32";
  case ElementType::F64:
    return "float64";
  }
  return "?";
}

double ulp(ElementType type, double magnitude) {
  if (type == ElementType::I32) return 1;
  const FloatFormat format = formatOf(type);
  const double size = std::fabs(magnitude);
  const int exponent = size > 0 && std::isfinite(size) ? std::ilogb(size) : format.minExponent;
  return std::ldexp(1.0, std::min(std::max(exponent, format.minExponent), format.maxExponent) - format.fractionBits);
}

double maxFinite(ElementType type) {
  if (type == ElementType::I32) return std::numeric_limits<int32_t>::max();
  const FloatFormat format = formatOf(type);
  return std::ldexp(2.0 - std::ldexp(1.0, -format.fractionBits), format.maxExponent);
}

} // namespace tilewright
