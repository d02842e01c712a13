// A matrix tile in shared memory and the asynchronous copies that fill it (cp.async, PTX ISA 9.7.9.25).
//
// A row's pitch is its padded width plus eight 16-bit elements, an odd number of 16-byte units. Eight consecutive rows
// therefore start in eight different bank groups, ldmatrix and 16-byte accesses are free of conflicts, and addresses
// within a tile stay one register plus an immediate, which an XOR swizzle would not allow.
#pragma once
#include "common/Types.cuh"

namespace tw {

/// How a storage type lies in shared memory. 16-bit types lie as they are. F32 is split into three bf16 planes,
/// x = high + middle + low, each the rounded rest of the ones before: 24 bits in all, so that the tensor cores' bf16
/// path serves it with fp32's own accuracy.
template <class Element> struct Format { static constexpr int planes = 1; };
template <> struct Format<F32> { static constexpr int planes = 3; };

/// `Rows` x `Cols` elements, `Cols` a multiple of 16. `Width` >= Cols sets the pitch where a tile shares its memory
/// with a wider one.
template <class ElementT, int Rows, int Cols, int Width = Cols> struct SharedTile {
  using Element = ElementT;
  static constexpr int rows = Rows, cols = Cols, planes = Format<Element>::planes;
  static constexpr int pitch = 2 * (Width + 8); ///< bytes
  static constexpr int planeBytes = Rows * pitch;
  static constexpr int bytes = planes * planeBytes;
  static_assert(Cols % 16 == 0 && Width >= Cols && (pitch / 16) % 2 == 1, "conflict-free pitch");

  UInt32 address; ///< in the shared window
  __device__ __forceinline__ explicit SharedTile(UInt32 address) : address(address) {}
};

/// Address of the dynamic shared memory, 16-byte aligned.
__device__ __forceinline__ UInt32 sharedBase() {
  extern __shared__ __align__(16) unsigned char twSharedMemory[];
  return UInt32(__cvta_generic_to_shared(twSharedMemory));
}

__device__ __forceinline__ void commitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `Pending` of this thread's newest groups are in flight.
template <int Pending> __device__ __forceinline__ void waitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

__device__ __forceinline__ void copy16Async(UInt32 to, const void *from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy4Async(UInt32 to, const void *from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(inside ? 4 : 0) : "memory");
}

__device__ __forceinline__ void storeShared16(UInt32 to, UInt32 a, UInt32 b, UInt32 c, UInt32 d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void storeShared4(UInt32 to, UInt32 a) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(a) : "memory");
}
__device__ __forceinline__ void storeGlobal16(void *to, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
/// The same where `condition` holds, without a branch.
__device__ __forceinline__ void storeGlobal16If(bool condition, void *to, uint4 x) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.b32 [%0], {%1, %2, %3, %4};}" ::"l"(to), "r"(x.x),
               "r"(x.y), "r"(x.z), "r"(x.w), "r"(int(condition))
               : "memory");
}
__device__ __forceinline__ uint4 loadShared16(UInt32 from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ float loadSharedFloat(UInt32 from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ float2 loadSharedFloat2(UInt32 from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}

/// Two floats in bf16, `x0` in the lower half.
__device__ __forceinline__ UInt32 packBF16(float x0, float x1) {
  UInt32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(x1), "f"(x0));
  return packed;
}
__device__ __forceinline__ UInt32 packF16(float x0, float x1) {
  UInt32 packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(x1), "f"(x0));
  return packed;
}
/// Packs two floats and leaves in them what the packing rounded off.
__device__ __forceinline__ UInt32 splitBF16(float &x0, float &x1) {
  UInt32 packed = packBF16(x0, x1);
  x0 -= __uint_as_float(packed << 16);
  x1 -= __uint_as_float(packed & 0xffff0000u);
  return packed;
}

/// Packs two floats into the planes of a format.
template <class Element> struct Pack;
template <> struct Pack<BF16> {
  static __device__ __forceinline__ void apply(float x0, float x1, UInt32 (&planes)[1]) {
    planes[0] = packBF16(x0, x1);
  }
};
template <> struct Pack<F16> {
  static __device__ __forceinline__ void apply(float x0, float x1, UInt32 (&planes)[1]) { planes[0] = packF16(x0, x1); }
};
template <> struct Pack<F32> {
  static __device__ __forceinline__ void apply(float x0, float x1, UInt32 (&planes)[3]) {
    planes[0] = splitBF16(x0, x1);
    planes[1] = splitBF16(x0, x1);
    planes[2] = packBF16(x0, x1);
  }
};

/// A (row, dim) matrix in global memory that all `Threads` threads of a block copy from, tile by tile, with `Dim` real
/// columns out of `Cols`. Row starts must be 16-byte aligned.
template <class Element, int Threads, int Dim, int Cols> struct TileSource {
  static_assert(Dim % 8 == 0 && Cols % 16 == 0 && Dim <= Cols, "whole 16-byte units");
  const Element *matrix;
  Int64 rowStride;
};

/// The thread's index, read anew on each call: what is derived from it is then recomputed instead of held in registers
/// through a main loop that has none to spare.
__device__ __forceinline__ int freshThreadIndex() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

/// Starts copying rows [firstRow, firstRow + Rows) of `source`. Rows from `rowLimit` on and columns from `Dim` on
/// become zero and their memory is never read. F32 is loaded, split and stored at once: complete when the call returns,
/// but like every copy visible to other threads only after waitCopies() and a block barrier.
template <class Element, int Threads, int Dim, int Rows, int Cols, int Width>
__device__ __forceinline__ void copyTileAsync(const SharedTile<Element, Rows, Cols, Width> &tile,
                                              const TileSource<Element, Threads, Dim, Cols> &source, int firstRow,
                                              int rowLimit) {
  using Tile = SharedTile<Element, Rows, Cols, Width>;
  constexpr int units = Cols / 8, total = Rows * units, steps = (total + Threads - 1) / Threads;
  int thread = freshThreadIndex(), rowsLeft = rowLimit - firstRow;
  if constexpr (Tile::planes == 1 && Threads % units == 0) {
    // A thread keeps its column and walks down the rows: one 64-bit addition a step.
    constexpr int rowStep = Threads / units;
    int row = thread / units, unit = thread % units;
    if (Dim < Cols && unit >= Dim / 8) rowsLeft = 0;
    const Element *from = source.matrix + (firstRow + row) * source.rowStride + unit * 8;
    UInt32 to = tile.address + row * Tile::pitch + unit * 16;
    rowsLeft -= row;
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (total % Threads == 0 || row + step * rowStep < Rows) copy16Async(to, from, step * rowStep < rowsLeft);
      from += rowStep * source.rowStride;
      to += rowStep * Tile::pitch;
    }
  } else {
    // A step of F32 holds eight loaded values: two at a time are what the registers bear.
#pragma unroll(Tile::planes == 1 ? steps : 2)
    for (int step = 0; step < steps; ++step) {
      int index = thread + step * Threads;
      if (total % Threads != 0 && index >= total) break;
      int row = index / units, unit = index % units;
      bool inside = row < rowsLeft && unit * 8 < Dim;
      const Element *from = source.matrix + Int64(firstRow + row) * source.rowStride + unit * 8;
      UInt32 to = tile.address + row * Tile::pitch + unit * 16;
      if constexpr (Tile::planes == 1) {
        copy16Async(to, from, inside);
      } else {
        float4 a = make_float4(0, 0, 0, 0), b = a;
        if (inside) {
          a = *reinterpret_cast<const float4 *>(from);
          b = *reinterpret_cast<const float4 *>(from + 4);
        }
#pragma unroll
        for (int p = 0; p < Tile::planes; ++p)
          storeShared16(to + p * Tile::planeBytes, splitBF16(a.x, a.y), splitBF16(a.z, a.w), splitBF16(b.x, b.y),
                        splitBF16(b.z, b.w));
      }
    }
  }
}

/// Starts copying `Rows` row statistics (fp32) from `firstRow` on; those from `rowLimit` on become zero.
template <int Threads, int Rows>
__device__ __forceinline__ void copyRowsAsync(UInt32 to, const float *source, int firstRow, int rowLimit) {
#pragma unroll
  for (int step = 0; step < roundUp<Threads>(Rows) / Threads; ++step) {
    int row = step * Threads + threadIdx.x;
    if (Rows % Threads == 0 || row < Rows) copy4Async(to + row * 4, source + firstRow + row, firstRow + row < rowLimit);
  }
}

} // namespace tw
