// Sums of one tile by many blocks: dQ of the fused backward pass (FlashAttention-2, algorithm 2, line 15). The fp32
// sums live in global memory in the order of accumulator fragments, 32 lanes of one fragment side by side, so that
// every reduction and every load is contiguous; convertSums brings them to rows. Addition order between blocks is free,
// so results differ in the last bits from run to run.
#pragma once
#include "common/Args.cuh"
#include "sm80/Centre.cuh"

namespace tw {

/// The sums of one query tile of `TileFloats` floats: tiles of a head side by side, then heads, then batch entries.
template <int TileFloats>
__device__ __forceinline__ float *sumsOf(float *sums, const Args &args, int head, int batch, int tiles, int tile) {
  return sums + ((Int64(batch) * args.headsQ + head) * tiles + tile) * TileFloats;
}

/// *to += x for the four elements of a fragment; `to` is the warp's fragment, 128 floats. One 16-byte reduction from
/// sm_90 on, four coalesced ones before.
__device__ __forceinline__ void reduceFragment(float *to, const float (&x)[4]) {
  int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + lane * 4), "f"(x[0]), "f"(x[1]), "f"(x[2]),
               "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int e = 0; e < 4; ++e)
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to + e * 32 + lane), "f"(x[e]) : "memory");
#endif
}
__device__ __forceinline__ void loadFragment(float (&x)[4], const float *from) {
  int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  float4 found = *reinterpret_cast<const float4 *>(from + lane * 4);
  x[0] = found.x, x[1] = found.y, x[2] = found.z, x[3] = found.w;
#else
#pragma unroll
  for (int e = 0; e < 4; ++e)
    x[e] = from[e * 32 + lane];
#endif
}

/// Adds a warp's sums to rows [row, row + M), columns [col, col + N) of a tile of `Cols` columns. Fragments of 16 rows
/// lie after one another, each a line of Cols / 8 fragments; row and col are multiples of 16 and 8.
template <int Cols, int M, int N>
__device__ __forceinline__ void reduceTile(float *tile, const Accumulator<M, N> &sums, int row, int col) {
  float *to = tile + row * Cols + col * 16;
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      reduceFragment(to + i * 16 * Cols + j * 128, sums.x[i][j]);
}

/// Loads them back.
template <int Cols, int M, int N>
__device__ __forceinline__ void loadTile(Accumulator<M, N> &sums, const float *tile, int row, int col) {
  const float *from = tile + row * Cols + col * 16;
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      loadFragment(sums.x[i][j], from + i * 16 * Cols + j * 128);
}

/// The same for row sums, which lie in the fragment after the tile's real columns (`col`).
template <int Cols, int M>
__device__ __forceinline__ void reduceRowSums(float *tile, const RowSums<M> &sums, int row, int col) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
    reduceFragment(tile + (row + i * 16) * Cols + col * 16, sums.x[i]);
}
template <int Cols, int M>
__device__ __forceinline__ void loadRowSums(RowSums<M> &sums, const float *tile, int row, int col) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
    loadFragment(sums.x[i], tile + (row + i * 16) * Cols + col * 16);
}

} // namespace tw
