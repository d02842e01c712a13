// Shared-memory operands of wgmma (PTX ISA 9.7.15.5.1.2.2): where a matrix lies and how its 8 x 128-byte cores follow
// one another. Swizzle 128 bytes; every tile starts at a multiple of 1024 bytes. Distances in units of 16 bytes.
#pragma once
#include "sm90/Barrier.cuh"

namespace tw {

__device__ __forceinline__ UInt64 wgmmaDescriptor(UInt32 address, UInt32 leading, UInt32 stride) {
  return UInt64(address >> 4) | UInt64(leading) << 16 | UInt64(stride) << 32 | UInt64(1) << 62;
}
/// K-major (Q, K: the product runs along a line): groups of 8 lines are 1024 bytes apart, the leading distance is not
/// used.
__device__ __forceinline__ UInt64 alongLines(UInt32 address) { return wgmmaDescriptor(address, 1, 64); }
/// MN-major (V: the product runs across lines): chunks of 64 columns are `chunkBytes` apart.
template <int ChunkBytes> __device__ __forceinline__ UInt64 acrossLines(UInt32 address) {
  return wgmmaDescriptor(address, ChunkBytes / 16, 64);
}

/// A group of products with none in it, for waits that count groups.
__device__ __forceinline__ void commitNoProduct() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

} // namespace tw
