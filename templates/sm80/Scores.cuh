// From raw products q.k to the scores of softmax(mask(score(scale * q.k))): score functions, masks, and the two ways
// to take exponents.
#pragma once
#include "sm80/Mma.cuh"

namespace tw {

/// Exponents when the score is scale * q.k: exp2(s * c - m * c) with c = scale * log2(e), one multiply-add an element.
/// The row maximum m is kept in raw units, which needs c > 0: see makeRawScores.
struct RawScores {
  float factor; ///< c > 0
  __device__ __forceinline__ float reference(float m) const { return m * factor; }
  __device__ __forceinline__ float exponent(float s, float reference) const { return fmaf(s, factor, -reference); }
  __device__ __forceinline__ float naturalMax(float m) const { return m * (factor * kLn2); }
  /// What exponents relative to `lse` lack against those relative to the maximum `m`, in log2 units. The product is
  /// rounded as reference() rounds it, never fused with the addition; then the difference of near values is exact.
  __device__ __forceinline__ float shift(float m, float lse) const {
    return __fmul_rn(m, factor) + __fmul_rn(-lse, kLog2E);
  }
  /// -LSE in the form that exponentOfLse takes.
  __device__ __forceinline__ float negatedLse(float lse) const { return -lse * kLog2E; }
  __device__ __forceinline__ float exponentOfLse(float s, float negated) const { return fmaf(s, factor, negated); }
};

/// Exponents when a score function has run and s is in natural units. Subtracting before the multiplication keeps
/// scores near the end of fp32's range finite.
struct NaturalScores {
  __device__ __forceinline__ float reference(float m) const { return m; }
  __device__ __forceinline__ float exponent(float s, float reference) const { return (s - reference) * kLog2E; }
  __device__ __forceinline__ float naturalMax(float m) const { return m; }
  __device__ __forceinline__ float shift(float m, float lse) const { return (m - lse) * kLog2E; }
  /// A row whose every score is -inf has LSE -inf; +inf makes its probabilities exp(-inf) = 0.
  __device__ __forceinline__ float negatedLse(float lse) const { return lse == minusInfinity() ? lse : -lse; }
  __device__ __forceinline__ float exponentOfLse(float s, float negated) const { return (s + negated) * kLog2E; }
};

/// RawScores takes maxima before scaling, so a scale that is not positive moves into the products first: returns the
/// factor for them (1 in the usual case, and then nothing need be multiplied).
__device__ __forceinline__ float signOfScale(float scale) { return scale > 0.f ? 1.f : scale < 0.f ? -1.f : 0.f; }
__device__ __forceinline__ RawScores makeRawScores(float scale) {
  return {(scale == 0.f ? 1.f : fabsf(scale)) * kLog2E};
}
/// For the backward pass, which takes no maximum: any scale serves as it is.
__device__ __forceinline__ RawScores makeSignedScores(float scale) { return {scale * kLog2E}; }

/// s = score(s * scale, q, k) for each element; `q0`, `k0` are the positions of the warp's first row and column.
template <int M, int N, class Score>
__device__ __forceinline__ void applyScore(Accumulator<M, N> &s, float scale, int q0, int k0, Score score) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s.x[i][j][e] = score(s.x[i][j][e] * scale, q0 + fragmentRow(i, e), k0 + fragmentCol(j, e));
}

/// s = -inf where not visible(q, k).
template <int M, int N, class Visible>
__device__ __forceinline__ void applyMask(Accumulator<M, N> &s, int q0, int k0, Visible visible) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!visible(q0 + fragmentRow(i, e), k0 + fragmentCol(j, e))) s.x[i][j][e] = minusInfinity();
}

} // namespace tw
