// delta = rowsum(dO * O), the softmax gradient's row constant (FlashAttention-2, algorithm 2, line 4). Memory bound:
// a row's 16-byte units go to neighbouring lanes, each row is read once.
#pragma once
#include "common/Types.cuh"

namespace tw {

template <class Element> struct Unit16 { static constexpr int elements = 8; };
template <> struct Unit16<F32> { static constexpr int elements = 4; };

__device__ __forceinline__ float2 widen(UInt32 pair, BF16) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ __forceinline__ float2 widen(UInt32 pair, F16) {
  float2 x;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(x.x), "=f"(x.y) : "r"(pair));
  return x;
}

template <class Element> __device__ __forceinline__ float dotUnits(uint4 a, uint4 b) {
  UInt32 left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (Unit16<Element>::elements == 4) {
      sum = fmaf(__uint_as_float(left[i]), __uint_as_float(right[i]), sum);
    } else {
      float2 x = widen(left[i], Element{}), y = widen(right[i], Element{});
      sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
    }
  }
  return sum;
}

/// Lanes that share a row of `Dim` elements: a power of two, at most 32.
template <class Element, int Dim> __host__ __device__ constexpr int lanesForRow() {
  int lanes = 1;
  while (lanes < 32 && lanes * Unit16<Element>::elements < Dim)
    lanes *= 2;
  return lanes;
}

/// The dot product of two rows, in every lane of the group that shares them.
template <class Element, int Dim> __device__ __forceinline__ float rowDot(const Element *a, const Element *b) {
  constexpr int lanes = lanesForRow<Element, Dim>(), elements = Unit16<Element>::elements;
  float sum = 0.f;
#pragma unroll
  for (int at = 0; at < Dim; at += lanes * elements) {
    int col = at + int(threadIdx.x % lanes) * elements;
    if (Dim % (lanes * elements) == 0 || col < Dim)
      sum += dotUnits<Element>(*reinterpret_cast<const uint4 *>(a + col), *reinterpret_cast<const uint4 *>(b + col));
  }
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

} // namespace tw
