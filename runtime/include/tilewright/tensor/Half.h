// Conversions between float32 and the two 16-bit formats: IEEE binary16 (fp16) and bfloat16. Rounding is to nearest,
// ties to even; infinities stay; a NaN stays a NaN with its sign and the upper bits of its payload, made quiet.
// The scalar functions are free of branches (both sides are computed, then selected), so that loops over them
// vectorise on any target; the bulk functions are such loops.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace tilewright {

inline uint16_t halfFromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // 0.5f has fp16's subnormal spacing, 2^-24, as its own: the addition rounds exactly as the format does.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  // Rounding may carry into the exponent, which is right, up to infinity.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal; // 2^-14
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;           // 65520, halfway to 2^16
  result = magnitude > 0x7f800000u ? nan : result;
  return static_cast<uint16_t>(sign | result);
}

inline float floatFromHalf(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t shifted = (half & 0x7fffu) << 13;
  const uint32_t exponent = shifted & 0x0f800000u;
  // 2^-14 + fraction * 2^-24, less 2^-14, is exact.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(shifted + (113u << 23)) - std::bit_cast<float>(113u << 23));
  uint32_t result = exponent == 0 ? subnormal : shifted + (112u << 23);
  result = exponent == 0x0f800000u ? shifted + (224u << 23) : result;
  return std::bit_cast<float>(sign | result);
}

inline uint16_t bfloat16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

inline float floatFromBFloat16(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

/// Bulk forms. Both spans have the same length.
void halfFromFloat(std::span<const float> from, std::span<uint16_t> to);
void floatFromHalf(std::span<const uint16_t> from, std::span<float> to);
void bfloat16FromFloat(std::span<const float> from, std::span<uint16_t> to);
void floatFromBFloat16(std::span<const uint16_t> from, std::span<float> to);

} // namespace tilewright
