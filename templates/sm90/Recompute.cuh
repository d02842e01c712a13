// Scores of one warp's rows by mma.sync from tiles that wgmma reads: for the rare tile whose scores are needed again
// after they became probabilities. wgmma would need all four warps of the group, of which perhaps one is in need.
#pragma once
#include "sm80/Mma.cuh"
#include "sm90/Tma.cuh"

namespace tw {

/// Shared address of the 16-byte unit that holds column `unit * 8` of a line of a swizzled tile.
template <class Tile> __device__ __forceinline__ UInt32 unitAddress(UInt32 tile, int line, int unit) {
  return tile + unit / 8 * Tile::chunkBytes + line * 128 + ((unit % 8 ^ line % 8) << 4);
}

/// s = Q K^T for the 16 lines of TileQ from address `q` on (a multiple of 8 lines into its tile) and all N of TileK.
template <class Element, class TileQ, class TileK, int N>
__device__ __forceinline__ void recomputeScores(Accumulator<16, N> &s, UInt32 q, UInt32 k) {
  int lane; // read where it is used: addresses made of it must not wait in registers through the main loop
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  s.clear();
#pragma unroll 1
  for (int step = 0; step < (TileQ::cols + 15) / 16; ++step) {
    UInt32 a[4];
    loadMatrices(a, unitAddress<TileQ>(q, lane % 16, 2 * step + lane / 16));
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
      UInt32 b[4];
      loadMatrices(b, unitAddress<TileK>(k, j * 8 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
      mmaFragment<Element>(s.x[0][j], a, b[0], b[1]);
      mmaFragment<Element>(s.x[0][j + 1], a, b[2], b[3]);
    }
  }
}

} // namespace tw
