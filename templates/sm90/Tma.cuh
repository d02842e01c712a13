// Tiles between global and shared memory by the tensor memory accelerator: one thread asks, the copy engine does the
// addressing, clips at the tensor's end (loads fill zeros, stores leave out) and applies the 128-byte swizzle.
#pragma once
#include "sm90/Barrier.cuh"

namespace tw {

/// CUtensorMap: dims (dim, row, head, batch), a box of 64 elements by as many rows as the tile has.
struct alignas(64) TensorMap {
  UInt64 opaque[16];
};

/// A tile of `Rows` x `Cols` 16-bit elements: columns in chunks of 64, each chunk `Rows` lines of 128 bytes whose
/// 16-byte units are exchanged by line number (unit ^ line % 8). Chunks past the last column hold zeros.
template <int RowCount, int ColCount> struct SwizzledTile {
  static constexpr int rows = RowCount, cols = ColCount, chunks = (ColCount + 63) / 64;
  static constexpr int chunkBytes = RowCount * 128, bytes = chunks * chunkBytes;
};

__device__ __forceinline__ void prefetchMap(const TensorMap &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Rows [row, row + Tile::rows) of one head into shared memory at `to`; the bytes count towards `barrier`.
template <class Tile>
__device__ __forceinline__ void loadTile(UInt32 to, const TensorMap &map, UInt32 barrier, int row, int head, int batch) {
#pragma unroll
  for (int chunk = 0; chunk < Tile::chunks; ++chunk)
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to + chunk * Tile::chunkBytes),
                 "l"(&map), "r"(barrier), "r"(chunk * 64), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

/// `Rows` lines of each chunk from shared memory at `from` (chunks `chunkBytes` apart) to rows from `row` on.
__device__ __forceinline__ void storeBox(const TensorMap &map, UInt32 from, int col, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(col), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
__device__ __forceinline__ void commitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until the copy engine has read what this thread's stores send; the memory may then be written again.
__device__ __forceinline__ void waitStoresRead() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// Until this thread's stores are complete: before the block may end.
__device__ __forceinline__ void waitStores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/// What threads wrote to shared memory becomes visible to the copy engine.
__device__ __forceinline__ void fenceForCopyEngine() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

} // namespace tw
