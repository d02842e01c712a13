// Results of a warp's 16 rows: O through swizzled shared memory and the copy engine, LSE from registers.
#pragma once
#include "sm80/Store.cuh"
#include "sm90/Softmax.cuh"
#include "sm90/Tma.cuh"
#include "common/Args.cuh"

namespace tw {

/// 16 lines of 128 bytes.
constexpr int kStagedChunkBytes = 2048;

__device__ __forceinline__ void storeMatrices(UInt32 address, UInt32 x0, UInt32 x1, UInt32 x2, UInt32 x3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x0), "r"(x1),
               "r"(x2), "r"(x3)
               : "memory");
}

/// Rounds `o` and sends it to rows from `row` on; those past the end of the tensor are left out. `stage` is shared
/// memory of this warp alone, for `Staged` chunks of 16 lines x 128 bytes; no other warp is waited for.
template <class Element, int Staged, int D>
__device__ __forceinline__ void storeOutput(const TensorMap &map, const Accumulator<16, D> &o, UInt32 stage, int row,
                                            int head, int batch) {
  int lane = threadIdx.x % 32, line = lane % 16;
#pragma unroll
  for (int chunk = 0; chunk < (D + 63) / 64; ++chunk) {
    UInt32 at = stage + chunk % Staged * kStagedChunkBytes;
    if (chunk % Staged == 0) {
      if (lane == 0) waitStoresRead();
      __syncwarp();
    }
#pragma unroll
    for (int t = chunk * 4; t < (chunk + 1) * 4 && t < D / 16; ++t) {
      int unit = t % 4 * 2 + lane / 16;
      storeMatrices(at + line * 128 + ((unit ^ line % 8) << 4),
                    packPair<Element>(o.x[0][2 * t][0], o.x[0][2 * t][1]),
                    packPair<Element>(o.x[0][2 * t][2], o.x[0][2 * t][3]),
                    packPair<Element>(o.x[0][2 * t + 1][0], o.x[0][2 * t + 1][1]),
                    packPair<Element>(o.x[0][2 * t + 1][2], o.x[0][2 * t + 1][3]));
    }
    if (chunk % Staged == Staged - 1 || chunk == (D + 63) / 64 - 1) {
      fenceForCopyEngine();
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int i = chunk / Staged * Staged; i <= chunk; ++i)
          storeBox(map, stage + i % Staged * kStagedChunkBytes, i * 64, row, head, batch);
        commitStores();
      }
    }
  }
}

/// Writes one value of each row below `rowLimit`, rows.max or rows.sum; `row0` is the warp's first row.
__device__ __forceinline__ void storeRowPair(float *to, const float (&values)[2], int row0, int rowLimit) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = row0 + fragmentRow(0, 2 * half);
    if (threadIdx.x % 4 == 0 && row < rowLimit) to[row] = values[half];
  }
}

/// 16 rows, those below `rowLimit`, of a tile that sees no key: O = 0, LSE = -inf, and no rest where one is asked for.
template <class Element, int Dim>
__device__ __forceinline__ void storeUnseen(const Args &args, int row0, int head, int batch) {
  Element *o = headOf<Element>(args.o, head, batch);
  float *lse = rowsOf(args.lse, args, head, batch);
  for (int row = row0; row < min(row0 + 16, args.seqQ); ++row) {
    for (int unit = threadIdx.x % 32; unit < Dim / 8; unit += 32)
      *reinterpret_cast<uint4 *>(o + row * args.o.rowStride + unit * 8) = make_uint4(0, 0, 0, 0);
    if (threadIdx.x % 32 == 0) lse[row] = minusInfinity();
    if (args.lseRest && threadIdx.x % 32 == 0) rowsOf(args.lseRest, args, head, batch)[row] = 0.f;
  }
}

} // namespace tw
