// The softmax part of the backward pass (FlashAttention-2, algorithm 2): P is recomputed from LSE, and
// dS = P * (dP - delta) with delta = rowsum(dO * O). Queries lie along the rows (dQ kernel) or, transposed, along the
// columns (dK/dV kernel), where products P^T dO and dS^T Q then take their left operand from registers.
#pragma once
#include "sm80/Scores.cuh"

namespace tw {

/// p = exp(s - LSE), queries along the rows; `lse` is the shared address of the first row's LSE. The row statistics
/// stay in shared memory because registers are what the backward kernels run out of first.
template <int M, int N, class Scores>
__device__ __forceinline__ void probabilities(Accumulator<M, N> &s, UInt32 lse, const Scores &scores) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float negated = scores.negatedLse(loadSharedFloat(lse + fragmentRow(i, 2 * half) * 4));
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          s.x[i][j][e] = exp2Approx(scores.exponentOfLse(s.x[i][j][e], negated));
    }
}

/// dp = p * (dp - delta), queries along the rows.
template <int M, int N>
__device__ __forceinline__ void scoreGradients(Accumulator<M, N> &dp, const Accumulator<M, N> &p, UInt32 delta) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float rowDelta = loadSharedFloat(delta + fragmentRow(i, 2 * half) * 4);
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          dp.x[i][j][e] = p.x[i][j][e] * (dp.x[i][j][e] - rowDelta);
    }
}

/// p = exp(s - LSE), queries along the columns; `lse` is the shared address of the first column's LSE.
template <int M, int N, class Scores>
__device__ __forceinline__ void probabilitiesTransposed(Accumulator<M, N> &s, UInt32 lse, const Scores &scores) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    float2 pair = loadSharedFloat2(lse + fragmentCol(j, 0) * 4);
    float negated[2] = {scores.negatedLse(pair.x), scores.negatedLse(pair.y)};
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s.x[i][j][e] = exp2Approx(scores.exponentOfLse(s.x[i][j][e], negated[e & 1]));
  }
}

/// LSE beyond which its fp32 rounding shows in the gradients' dtype: 2^-20 of a probability for F32, 2^-15 for the
/// others.
template <class Element> constexpr float kCoarseLse = Format<Element>::planes > 1 ? 16.f : 1024.f;

/// Whether any of `Rows` LSE from the shared address `lse` on is beyond that. So is that of a row which sees nothing.
template <class Element, int Rows> __device__ __forceinline__ bool anyCoarse(UInt32 lse) {
  bool coarse = false;
#pragma unroll
  for (int row = 0; row < Rows; row += 32)
    coarse |= fabsf(loadSharedFloat(lse + min(row + int(threadIdx.x % 32), Rows - 1) * 4)) > kCoarseLse<Element>;
  return __any_sync(0xffffffffu, coarse);
}

/// s = ln of the probability of each raw product, taken with what rounding left out of LSE. `rest` holds that for the
/// head's rows, or is null; `q0` is the warp's first query. For the warps whose LSE are coarse; their exponents then
/// come from settled RawGradients.
__device__ __forceinline__ float restOf(const float *rest, int q, int seqQ) { return rest && q < seqQ ? rest[q] : 0.f; }
template <int M, int N>
__device__ __forceinline__ void takeLogProbabilities(Accumulator<M, N> &s, float scale, UInt32 lse, const float *rest,
                                                     int q0, int seqQ) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int at = fragmentRow(i, 2 * half);
      LogProbability row(loadSharedFloat(lse + at * 4), restOf(rest, q0 + at, seqQ));
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          s.x[i][j][e] = row.of(s.x[i][j][e], scale);
    }
}
template <int M, int N>
__device__ __forceinline__ void takeLogProbabilitiesTransposed(Accumulator<M, N> &s, float scale, UInt32 lse,
                                                               const float *rest, int q0, int seqQ) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      int at = fragmentCol(j, odd);
      LogProbability row(loadSharedFloat(lse + at * 4), restOf(rest, q0 + at, seqQ));
#pragma unroll
      for (int i = 0; i < M / 16; ++i)
#pragma unroll
        for (int e = odd; e < 4; e += 2)
          s.x[i][j][e] = row.of(s.x[i][j][e], scale);
    }
}

/// Takes out of probabilities of a score function what rounding left out of LSE; `rest` and `q0` as above. No
/// probability exceeds 1: recomputed products of that size may differ from forward's by many units.
__device__ __forceinline__ float restFactor(const float *rest, int q, int seqQ) {
  return exp2Approx(-restOf(rest, q, seqQ) * kLog2E);
}
__device__ __forceinline__ void correctProbability(float &p, float factor) {
  p *= factor;
  p = p > 1.f ? 1.f : p; // NaN stays
}
template <int M, int N>
__device__ __forceinline__ void correctProbabilities(Accumulator<M, N> &p, const float *rest, int q0, int seqQ) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float factor = restFactor(rest, q0 + fragmentRow(i, 2 * half), seqQ);
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          correctProbability(p.x[i][j][e], factor);
    }
}
template <int M, int N>
__device__ __forceinline__ void correctProbabilitiesTransposed(Accumulator<M, N> &p, const float *rest, int q0,
                                                               int seqQ) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      float factor = restFactor(rest, q0 + fragmentCol(j, odd), seqQ);
#pragma unroll
      for (int i = 0; i < M / 16; ++i)
#pragma unroll
        for (int e = odd; e < 4; e += 2)
          correctProbability(p.x[i][j][e], factor);
    }
}

/// dp = p * (dp - delta), queries along the columns.
template <int M, int N>
__device__ __forceinline__ void scoreGradientsTransposed(Accumulator<M, N> &dp, const Accumulator<M, N> &p,
                                                         UInt32 delta) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    float2 pair = loadSharedFloat2(delta + fragmentCol(j, 0) * 4);
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        dp.x[i][j][e] = p.x[i][j][e] * (dp.x[i][j][e] - (e & 1 ? pair.y : pair.x));
  }
}

/// x = `value` where not visible(q, k). A selection, not a product: outside the mask x may be infinite or NaN.
template <int M, int N, class Visible>
__device__ __forceinline__ void replaceInvisible(Accumulator<M, N> &x, float value, int q0, int k0, Visible visible) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!visible(q0 + fragmentRow(i, e), k0 + fragmentCol(j, e))) x.x[i][j][e] = value;
}
template <int M, int N, class Visible>
__device__ __forceinline__ void replaceInvisibleTransposed(Accumulator<M, N> &x, float value, int q0, int k0,
                                                           Visible visible) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!visible(q0 + fragmentCol(j, e), k0 + fragmentRow(i, e))) x.x[i][j][e] = value;
}

/// A score function's value and its derivative with respect to the scaled product.
struct ScoreDual {
  float value, slope;
};

/// s = score(s * scale, q, k) and slopes = its derivative; `dual(s, q, k)` gives both.
template <int M, int N, class Dual>
__device__ __forceinline__ void applyScoreDual(Accumulator<M, N> &s, Accumulator<M, N> &slopes, float scale, int q0,
                                               int k0, Dual dual) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        ScoreDual found = dual(s.x[i][j][e] * scale, q0 + fragmentRow(i, e), k0 + fragmentCol(j, e));
        s.x[i][j][e] = found.value;
        slopes.x[i][j][e] = found.slope;
      }
}
template <int M, int N, class Dual>
__device__ __forceinline__ void applyScoreDualTransposed(Accumulator<M, N> &s, Accumulator<M, N> &slopes, float scale,
                                                         int q0, int k0, Dual dual) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        ScoreDual found = dual(s.x[i][j][e] * scale, q0 + fragmentCol(j, e), k0 + fragmentRow(i, e));
        s.x[i][j][e] = found.value;
        slopes.x[i][j][e] = found.slope;
      }
}
/// dp *= slopes.
template <int M, int N>
__device__ __forceinline__ void multiplyBySlopes(Accumulator<M, N> &dp, const Accumulator<M, N> &slopes) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        dp.x[i][j][e] *= slopes.x[i][j][e];
}

/// Rounds a warp's accumulator into rows [row, row + M), columns [col, col + N) of a shared tile.
template <int M, int N, class Tile>
__device__ __forceinline__ void storeShared(const Tile &tile, const Accumulator<M, N> &sums, int row, int col) {
  UInt32 base = tile.address + (row + fragmentRow(0, 0)) * Tile::pitch + (col + fragmentCol(0, 0)) * 2;
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        UInt32 planes[Tile::planes];
        Pack<typename Tile::Element>::apply(sums.x[i][j][2 * half], sums.x[i][j][2 * half + 1], planes);
#pragma unroll
        for (int p = 0; p < Tile::planes; ++p)
          storeShared4(base + p * Tile::planeBytes + (i * 16 + half * 8) * Tile::pitch + j * 16, planes[p]);
      }
}

/// Barrier of the `Threads` threads that share `id` (1 to 15; 0 is the block's own).
template <int Threads> __device__ __forceinline__ void groupBarrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}

} // namespace tw
