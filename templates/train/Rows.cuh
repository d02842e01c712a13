// How the layers' kernels share a matrix: rows are tokens, a warp takes one, its lanes neighbouring units of eight
// columns. Matrices have any stride between rows that is a multiple of a unit. Sums are taken in an order that sizes
// alone decide, so that the same data give the same bits.
#pragma once
#include "common/Elements.cuh"

namespace tw {

constexpr int kLayerThreads = 256, kWarps = kLayerThreads / 32;

/// A matrix's memory.
struct RowsRef {
  void *data;
  Int64 stride; ///< Elements between rows.

  template <class Element> __device__ __forceinline__ Element *row(Int64 r) const {
    return static_cast<Element *>(data) + r * stride;
  }
};

__device__ __forceinline__ int laneIndex() { return threadIdx.x % 32; }
__device__ __forceinline__ int warpOfBlock() { return threadIdx.x / 32; }
/// The row of this thread's warp, in a grid of ceil(rows / kWarps) blocks.
__device__ __forceinline__ Int64 rowOfWarp() { return static_cast<Int64>(blockIdx.x) * kWarps + warpOfBlock(); }

/// In every lane.
__device__ __forceinline__ float warpSum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}
__device__ __forceinline__ float warpMax(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

struct ConvertRowsArgs {
  RowsRef from, to;
  Int64 rows;
  int columns;
  int add; ///< To what is there.
};

template <class From, class To> __device__ void convertRows(const ConvertRowsArgs &args) {
  const Int64 r = rowOfWarp();
  if (r >= args.rows) return;
  const From *from = args.from.row<From>(r);
  To *to = args.to.row<To>(r);
  for (int c = laneIndex() * kUnit; c < args.columns; c += 32 * kUnit) {
    Unit u = loadUnit(from + c);
    if (args.add) {
      const Unit before = loadUnit(to + c);
#pragma unroll
      for (int i = 0; i < kUnit; ++i)
        u.x[i] += before.x[i];
    }
    storeUnit(to + c, u);
  }
}

} // namespace tw
