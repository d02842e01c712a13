// From raw products q.k to the scores of softmax(mask(score(scale * q.k))): score functions and masks.
#pragma once
#include "common/Exponents.cuh"
#include "sm80/Mma.cuh"

namespace tw {

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
