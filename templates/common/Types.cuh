// Storage types of tensors and the few constants that every kernel needs. NVRTC compiles without any header, so
// these replace cuda_bf16.h, cuda_fp16.h and the limits of the standard library.
#pragma once

namespace tw {

using Int64 = long long;
using UInt32 = unsigned int;

struct BF16 {
  unsigned short bits;
};
struct F16 {
  unsigned short bits;
};
struct F32 {
  float value;
};

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.69314718055994531f;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float minusInfinity() { return __int_as_float(0xff800000); }

/// 2^x by the special function unit: relative error 2^-22, 2^-inf = 0, denormal results flushed.
__device__ __forceinline__ float exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int Multiple> __host__ __device__ constexpr int roundUp(int x) {
  return (x + Multiple - 1) / Multiple * Multiple;
}

} // namespace tw
