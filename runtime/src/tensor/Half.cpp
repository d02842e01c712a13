#include "tilewright/tensor/Half.h"
#include <cstddef>

namespace tilewright {

void halfFromFloat(std::span<const float> from, std::span<uint16_t> to) {
  for (size_t i = 0; i < from.size(); ++i)
    to[i] = halfFromFloat(from[i]);
}

void floatFromHalf(std::span<const uint16_t> from, std::span<float> to) {
  for (size_t i = 0; i < from.size(); ++i)
    to[i] = floatFromHalf(from[i]);
}

void bfloat16FromFloat(std::span<const float> from, std::span<uint16_t> to) {
  for (size_t i = 0; i < from.size(); ++i)
    to[i] = bfloat16FromFloat(from[i]);
}

void floatFromBFloat16(std::span<const uint16_t> from, std::span<float> to) {
  for (size_t i = 0; i < from.size(); ++i)
    to[i] = floatFromBFloat16(from[i]);
}

} // namespace tilewright
