// Elements in memory as the floats they are computed with: one at a time, and units of eight, which are one 16-byte
// access for BF16 and two for F32.
#pragma once
#include "common/Types.cuh"

namespace tw {

__device__ __forceinline__ float bf16Low(UInt32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16High(UInt32 pair) { return __uint_as_float(pair & 0xffff0000u); }

/// To nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ unsigned short roundToBF16(float value) {
  const UInt32 bits = __float_as_uint(value);
  return (bits & 0x7fffffffu) > 0x7f800000u ? static_cast<unsigned short>(bits >> 16 | 0x40u)
                                            : static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
__device__ __forceinline__ UInt32 packBF16(float low, float high) {
#ifdef __CUDA_ARCH__
  UInt32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return static_cast<UInt32>(roundToBF16(high)) << 16 | roundToBF16(low);
#endif
}

__device__ __forceinline__ float loadElement(const F32 *from) { return from->value; }
__device__ __forceinline__ float loadElement(const BF16 *from) {
  return __uint_as_float(static_cast<UInt32>(from->bits) << 16);
}
__device__ __forceinline__ void storeElement(F32 *to, float value) { to->value = value; }
__device__ __forceinline__ void storeElement(BF16 *to, float value) { to->bits = roundToBF16(value); }

/// What `value` is once it has been stored as an Element.
template <class Element> __device__ __forceinline__ float stored(float value) {
  Element element;
  storeElement(&element, value);
  return loadElement(&element);
}

constexpr int kUnit = 8;

struct Unit {
  float x[kUnit];
};

/// The address is a multiple of 16 bytes.
__device__ __forceinline__ Unit loadUnit(const F32 *from) {
  const float4 low = reinterpret_cast<const float4 *>(from)[0], high = reinterpret_cast<const float4 *>(from)[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}
__device__ __forceinline__ Unit loadUnit(const BF16 *from) {
  const uint4 pairs = *reinterpret_cast<const uint4 *>(from);
  return {{bf16Low(pairs.x), bf16High(pairs.x), bf16Low(pairs.y), bf16High(pairs.y), bf16Low(pairs.z),
           bf16High(pairs.z), bf16Low(pairs.w), bf16High(pairs.w)}};
}
__device__ __forceinline__ void storeUnit(F32 *to, const Unit &u) {
  reinterpret_cast<float4 *>(to)[0] = make_float4(u.x[0], u.x[1], u.x[2], u.x[3]);
  reinterpret_cast<float4 *>(to)[1] = make_float4(u.x[4], u.x[5], u.x[6], u.x[7]);
}
__device__ __forceinline__ void storeUnit(BF16 *to, const Unit &u) {
  *reinterpret_cast<uint4 *>(to) = make_uint4(packBF16(u.x[0], u.x[1]), packBF16(u.x[2], u.x[3]),
                                              packBF16(u.x[4], u.x[5]), packBF16(u.x[6], u.x[7]));
}

} // namespace tw
