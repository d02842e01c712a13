// Which tile a thread block owns. The grid is one-dimensional: block x = (batch * heads + head) * tiles + tile, so
// that blocks which share a head's operands run side by side and meet in L2.
#pragma once
#include "common/Types.cuh"

namespace tw {

/// Lane 0's value, which every lane must hold anyway. It tells the assembler that the value is the same in the whole
/// warp, so that what follows from it may live in uniform registers.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/// Index of the warp in its block.
__device__ __forceinline__ int warpIndex() { return uniform(int(threadIdx.x) / 32); }

struct Block {
  int tile, head, batch;
  int part = 0; ///< Of a walk that several blocks share.
};

/// `LastFirst` reverses the tiles of a head: under a causal mask the longest ones then start first and the last wave
/// is made of short ones. Each call reads the block's index anew: a kernel calls it again for its epilogue rather than
/// hold the result in registers through its main loop.
template <bool LastFirst> __device__ __forceinline__ Block decodeBlock(int heads, int tiles) {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  int column = index / tiles;
  int tile = index - column * tiles, batch = column / heads;
  return {uniform(LastFirst ? tiles - 1 - tile : tile), uniform(column - batch * heads), uniform(batch)};
}

} // namespace tw
