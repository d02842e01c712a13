// Loads and stores of tiles whose rows are several query heads of one kv head (common/RowOwner.cuh).
#pragma once
#include "common/RowOwner.cuh"
#include "sm90/Epilogue.cuh"

namespace tw {

/// Tile of `Heads` x `Rows / Heads` rows; lines past the last whole query belong to nobody.
template <class Tile, int Heads> struct PackedTile {
  static constexpr int queries = Tile::rows / Heads, rows = queries * Heads;
  static constexpr int bytes = Tile::chunks * rows * 128; ///< That a load brings.
};

/// Query rows from `row` on into shared memory at `to`. The map has the heads of a group as an axis of their own: (dim,
/// head of the group, row, kv head, batch).
template <class Tile>
__device__ __forceinline__ void loadPackedTile(UInt32 to, const TensorMap &map, UInt32 barrier, int row, int kvHead,
                                               int batch) {
#pragma unroll
  for (int chunk = 0; chunk < Tile::chunks; ++chunk)
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to + chunk * Tile::chunkBytes),
                 "l"(&map), "r"(barrier), "r"(chunk * 64), "r"(0), "r"(row), "r"(kvHead), "r"(batch)
                 : "memory");
}

/// Zeroes the lines of `Slots` tiles that no load writes; by all `Threads` of the block, before the first product.
template <class Tile, int Heads, int Slots, int Threads> __device__ __forceinline__ void clearUnownedLines(UInt32 tiles) {
  constexpr int first = PackedTile<Tile, Heads>::rows, units = (Tile::rows - first) * 8;
#pragma unroll 1
  for (int i = threadIdx.x; i < Slots * Tile::chunks * units; i += Threads)
    storeShared16(tiles + i / units * Tile::chunkBytes + first * 128 + i % units * 16, 0, 0, 0, 0);
  fenceForCopyEngine();
}

/// Rounds a warp's 16 rows of `o` and stores them, with LSE and, where it is asked for, what its rounding left out.
template <class Element, int Dim, class Owner, int D>
__device__ __forceinline__ void storePacked(const Args &args, const Owner &owner, const Accumulator<16, D> &o,
                                            const OnlineRows &state, int row0) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = row0 + fragmentRow(0, 2 * half);
    if (!owner.owns(row)) continue;
    Element *line = owner.template line<Element>(args.o, row);
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      if (D == Dim || fragmentCol(j, 0) < Dim)
        *reinterpret_cast<UInt32 *>(line + fragmentCol(j, 0)) =
            packPair<Element>(o.x[0][j][2 * half], o.x[0][j][2 * half + 1]);
    if (threadIdx.x % 4 != 0) continue;
    owner.value(args.lse, args, row) = state.max[half];
    if (args.lseRest) owner.value(args.lseRest, args, row) = state.sum[half];
  }
}

/// A warp's 16 rows of a tile that sees no key: O = 0, LSE = -inf, no rest.
template <class Element, int Dim, class Owner>
__device__ __forceinline__ void storePackedUnseen(const Args &args, const Owner &owner, int row0) {
  Accumulator<16, roundUp<16>(Dim)> o;
  o.clear();
  OnlineRows state;
  state.clear();
  storePacked<Element, Dim>(args, owner, o, state, row0);
}

} // namespace tw
