// dQ from keys relative to their mean. The rows of dS sum to zero, so dQ_i = sum_j dS_ij K_j = sum_j dS_ij (K_j - c)
// for any c. In 16 bits the sums are not zero: rounding of dS, and of O inside delta, leaves r_i, and a common offset
// of the keys enters dQ as r_i times the offset, however large. Subtracting r_i c with c near the keys' mean takes that
// out again. Only for scores without a score function: its slopes would break the zero sums.
#pragma once
#include "common/Positions.cuh"
#include "common/RowDot.cuh"
#include "sm80/Mma.cuh"

namespace tw {

/// Row sums of an `M`-row operand as the tensor cores see it, after rounding: a product with a column of ones, which
/// comes out in all eight columns of a fragment.
template <int M> struct RowSums {
  float x[M / 16][4];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[i][e] = 0.f;
  }
};

template <class Element> struct PackedOnes { static constexpr UInt32 value = 0x3f803f80u; };
template <> struct PackedOnes<F16> { static constexpr UInt32 value = 0x3c003c00u; };

template <class Element, int M, int K>
__device__ __forceinline__ void addRowSums(RowSums<M> &sums, const Operand<Element, M, K> &a) {
  constexpr UInt32 ones = PackedOnes<Element>::value;
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      if constexpr (Format<Element>::planes == 1) {
        mmaFragment<Element>(sums.x[i], a.x[0][i][k], ones, ones);
      } else {
        float step[4] = {0.f, 0.f, 0.f, 0.f}; // as in multiplyPlanes
#pragma unroll
        for (int p = Format<Element>::planes - 1; p >= 0; --p)
          mmaFragment<Element>(step, a.x[p][i][k], ones, ones);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums.x[i][e] += step[e];
      }
    }
}
/// The same for A^T, whose rows are columns [aCol, aCol + M) of a shared tile.
template <int M, class TileA>
__device__ __forceinline__ void addRowSumsFromTransposed(RowSums<M> &sums, const TileA &a, int aCol) {
  constexpr UInt32 ones = PackedOnes<typename TileA::Element>::value;
  SharedTransposedA<TileA> from(a, 0, aCol);
#pragma unroll
  for (int k = 0; k < TileA::rows / 16; ++k)
#pragma unroll
    for (int p = TileA::planes - 1; p >= 0; --p)
#pragma unroll
      for (int i = 0; i < M / 16; ++i) {
        UInt32 x[4];
        from.load(x, p, i, k);
        mmaFragment<typename TileA::Element>(sums.x[i], x, ones, ones);
      }
}

__device__ __forceinline__ float2 loadPair(const BF16 *from) {
  return widen(*reinterpret_cast<const UInt32 *>(from), BF16{});
}
__device__ __forceinline__ float2 loadPair(const F16 *from) {
  return widen(*reinterpret_cast<const UInt32 *>(from), F16{});
}
__device__ __forceinline__ float2 loadPair(const F32 *from) { return *reinterpret_cast<const float2 *>(from); }

/// Mean of up to 16 rows of a matrix of `Dim` columns, spread over `bounds`, by all `Threads` threads of the block, as
/// fp32 in shared memory at `to`; 0 where it is not finite. A sample serves as well as the whole, since any value is
/// valid; but one far from the keys in use would multiply the rounding that it is to take out. So only rows k with
/// visible(q, k) count: hidden ones may hold anything.
template <int Threads, int Dim, class Element, class Visible>
__device__ __forceinline__ void sampleMeanRow(UInt32 to, const Element *matrix, Int64 rowStride, PositionBounds bounds,
                                              int q, Visible visible) {
  constexpr int samples = 16;
  for (int col = threadIdx.x * 2; col < roundUp<16>(Dim); col += Threads * 2) {
    float2 sum = make_float2(0.f, 0.f);
    int rows = bounds.end - bounds.begin, count = 0;
    if (col < Dim && rows > 0) {
#pragma unroll 4
      for (int i = 0; i < samples; ++i) {
        int k = bounds.begin + int((2 * i + 1) * Int64(rows) / (2 * samples));
        if (!visible(q, k)) continue;
        float2 x = loadPair(matrix + k * rowStride + col);
        sum.x += x.x, sum.y += x.y;
        ++count;
      }
    }
    float x = sum.x / max(count, 1), y = sum.y / max(count, 1);
    storeShared4(to + col * 4, fabsf(x) < infinity() ? __float_as_uint(x) : 0u);
    storeShared4(to + col * 4 + 4, fabsf(y) < infinity() ? __float_as_uint(y) : 0u);
  }
}

/// x -= sums * row: the row's columns [col, col + N) lie in shared memory at `row`.
template <int M, int N>
__device__ __forceinline__ void subtractRowSums(Accumulator<M, N> &x, const RowSums<M> &sums, UInt32 row, int col) {
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    float2 mean = loadSharedFloat2(row + (col + fragmentCol(j, 0)) * 4);
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x.x[i][j][e] -= sums.x[i][e] * (e & 1 ? mean.y : mean.x);
  }
}

} // namespace tw
