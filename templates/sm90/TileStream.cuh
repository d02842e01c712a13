// Which q tiles a block computes, in which order. One warp deals them out: it takes the next tile's number, works out
// where that tile lies and leaves it in shared memory, where the loading warp and the consumers read it.
#pragma once
#include "sm90/Tma.cuh"

namespace tw {

/// What the host works out for a launch (the runtime's TileGrid).
struct TileGrid {
  int tiles;        ///< q tiles of a head
  int columns;      ///< batch * heads
  int heads;
  int sectionHeads; ///< Longest first: heads (of batch * heads) whose tiles are sorted together.
  UInt32 *tickets;  ///< Dynamic order: numbers drawn so far beyond the grid's own, and blocks that are done; both are
                    ///< left at 0. Null: tiles are dealt in rounds of as many as there are blocks.
};

/// The kernels' second parameter: byte for byte the runtime's Sm90Launch.
struct Sm90Launch {
  TensorMap q, k, v, o;
  TileGrid grid;
};

static_assert(sizeof(Sm90Launch) == 9 * 64, "the runtime's Sm90Launch");

/// Tile number `index` of the whole grid; the `Parts` that share a tile's keys follow one another. Plain: the tiles of a
/// head follow one another. Longest first: the last tile of each head of a section, then the last but one, ...
template <bool LongestFirst, int Parts> __device__ __forceinline__ Block tileOf(const TileGrid &grid, int index) {
  int column, tile, part = index % Parts;
  index /= Parts;
  if constexpr (LongestFirst) {
    int section = index / (grid.sectionHeads * grid.tiles);
    int first = section * grid.sectionHeads, within = index - first * grid.tiles;
    int heads = min(grid.sectionHeads, grid.columns - first);
    int rank = within / heads;
    column = first + within - rank * heads;
    tile = grid.tiles - 1 - rank;
  } else {
    column = index / grid.tiles;
    tile = index - column * grid.tiles;
  }
  int batch = column / grid.heads;
  return {tile, column - batch * grid.heads, batch, part};
}

/// The slot through which tiles, in `Parts` parts each, are handed on, one ahead of what is being computed.
template <int Parts> struct TileSlot {
  static constexpr int bytes = 16 + Ring<1>::bytes;
  UInt32 place;
  Ring<1> ring;
  __device__ __forceinline__ explicit TileSlot(UInt32 address) : place(address), ring(address + 16) {}
  __device__ __forceinline__ void init(int takingWarps) const { ring.init(takingWarps); }

  __device__ __forceinline__ void put(const Block &block) {
    ring.waitEmpty();
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(block.tile), "r"(block.head),
                 "r"(block.batch), "r"(block.part)
                 : "memory");
    arrive(ring.full());
    ring.advance();
  }
  /// The next tile, -1 at the end. Every warp that takes part takes each. The lane that frees the slot is the one that
  /// reads it, so its program order is all the order there has to be.
  __device__ __forceinline__ Block take() {
    Block block = {};
    ring.waitFull();
    if (threadIdx.x % 32 == 0)
      asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(block.tile), "=r"(block.head), "=r"(block.batch), "=r"(block.part)
                   : "r"(place)
                   : "memory");
    ring.release();
    return {uniform(block.tile), uniform(block.head), uniform(block.batch), Parts > 1 ? uniform(block.part) : 0};
  }
};

/// Deals out tiles until none is left; by one thread.
template <bool LongestFirst, int Parts> __device__ __forceinline__ void dealTiles(const TileGrid &grid, TileSlot<Parts> slot) {
  int count = grid.tiles * grid.columns * Parts, index = int(blockIdx.x);
  while (index < count) {
    slot.put(tileOf<LongestFirst, Parts>(grid, index));
    if (grid.tickets == nullptr)
      index += int(gridDim.x);
    else
      index = int(gridDim.x + atomicAdd(grid.tickets, 1u));
  }
  slot.put({-1, 0, 0});
  // The last block to draw in vain leaves the tickets as it found them. Launches that share them follow one another.
  if (grid.tickets != nullptr && atomicInc(grid.tickets + 1, gridDim.x - 1) == gridDim.x - 1)
    atomicExch(grid.tickets, 0u);
}

} // namespace tw
