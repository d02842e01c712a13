// Online softmax over accumulator fragments (FlashAttention-2, algorithm 1: one running maximum, sum and unnormalised
// output a row; Milakov and Gimelshein, "Online normalizer calculation for softmax").
#pragma once
#include "sm80/Scores.cuh"

namespace tw {

/// Maximum and sum of the rows that this lane holds. The sum is this lane's share until finishRows adds up the quad.
template <int M> struct RowStats {
  float max[M / 16][2], sum[M / 16][2];
  bool far = false; ///< Some maximum of the warp is far (common/Exponents.cuh).
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        max[i][half] = minusInfinity();
        sum[i][half] = 0.f;
      }
  }
};

/// Maximum and sum over the four lanes that share a row.
__device__ __forceinline__ float quadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quadSum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// Turns scores into probabilities relative to the running maximum and brings `o` and `stats` to that maximum.
/// The maximum moves, and `o` is multiplied, only when some row of the warp grew by more than `thresholdLog2` (log2
/// units): exact after normalisation, and probabilities stay below 2^threshold. A row that has seen nothing keeps its
/// maximum at -inf; 0 stands in for it so that no inf - inf arises. Whether a warp has far maxima can change only when
/// they move, so asking costs its loop one branch.
template <int M, int N, int D, class Scores>
__device__ __forceinline__ void onlineSoftmax(Accumulator<M, N> &s, Accumulator<M, D> &o, RowStats<M> &stats,
                                              const Scores &scores, float thresholdLog2) {
  float newMax[M / 16][2];
  bool grew = false;
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m = fmaxf(s.x[i][0][2 * half], s.x[i][0][2 * half + 1]);
#pragma unroll
      for (int j = 1; j < N / 8; ++j)
        m = fmaxf(m, fmaxf(s.x[i][j][2 * half], s.x[i][j][2 * half + 1]));
      newMax[i][half] = fmaxf(quadMax(m), stats.max[i][half]);
      // From -inf the growth is +inf, or NaN (false) when nothing is visible yet.
      grew |= scores.growth(newMax[i][half], stats.max[i][half]) > thresholdLog2;
    }
  if (__any_sync(0xffffffffu, grew)) {
    if constexpr (Scores::canBeFar) {
      bool far = false;
#pragma unroll
      for (int i = 0; i < M / 16; ++i)
        far |= scores.isFar(newMax[i][0]) || scores.isFar(newMax[i][1]);
      stats.far = __any_sync(0xffffffffu, far);
    }
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float origin = newMax[i][half] == minusInfinity() ? 0.f : newMax[i][half], old = stats.max[i][half];
        float factor =
            exp2Approx(stats.far ? scores.growth(old, origin) : scores.exponent(old, scores.reference(origin)));
        stats.max[i][half] = newMax[i][half];
        stats.sum[i][half] *= factor;
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
          o.x[i][j][2 * half] *= factor;
          o.x[i][j][2 * half + 1] *= factor;
        }
      }
  }
  float origin[M / 16][2];
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      origin[i][half] = stats.max[i][half] == minusInfinity() ? 0.f : stats.max[i][half];
  if (Scores::canBeFar && stats.far) {
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < N / 8; ++j)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e)
            s.x[i][j][e] -= origin[i][half];
        origin[i][half] = 0.f;
      }
  }
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float reference = scores.reference(origin[i][half]);
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s.x[i][j][e] = exp2Approx(scores.exponent(s.x[i][j][e], reference));
          sum += s.x[i][j][e];
        }
      stats.sum[i][half] += sum;
    }
}

/// Normalises `o` and turns stats.max into the rows' LSE (natural log) and stats.sum into what its rounding left out,
/// as the exponents of the backward pass will see it. Rows that saw nothing: o = 0, LSE = -inf, rest = 0.
template <int M, int D, class Scores>
__device__ __forceinline__ void finishRows(Accumulator<M, D> &o, RowStats<M> &stats, const Scores &scores) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = quadSum(stats.sum[i][half]);
      float inverse = sum == 0.f ? 0.f : 1.f / sum;
      float m = stats.max[i][half], lse = scores.lse(m, logf(sum));
      stats.max[i][half] = sum == 0.f ? minusInfinity() : lse;
      stats.sum[i][half] = sum == 0.f ? 0.f : (scores.shift(m, lse, stats.far) + log2f(sum)) * kLn2;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        o.x[i][j][2 * half] *= inverse;
        o.x[i][j][2 * half + 1] *= inverse;
      }
    }
}

/// Writes one value of each row below `rowLimit`, stats.max or stats.sum; `row0` is the warp's first row.
template <int M>
__device__ __forceinline__ void storeRowValues(float *to, const float (&values)[M / 16][2], int row0, int rowLimit) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = row0 + fragmentRow(i, 2 * half);
      if (threadIdx.x % 4 == 0 && row < rowLimit) to[row] = values[i][half];
    }
}

/// The rows' LSE after finishRows.
template <int M>
__device__ __forceinline__ void storeLse(float *lse, const RowStats<M> &stats, int row0, int rowLimit) {
  storeRowValues<M>(lse, stats.max, row0, rowLimit);
}
/// What its rounding left out.
template <int M>
__device__ __forceinline__ void storeLseRest(float *rest, const RowStats<M> &stats, int row0, int rowLimit) {
  storeRowValues<M>(rest, stats.sum, row0, rowLimit);
}

} // namespace tw
