// Accumulators to global memory.
#pragma once
#include "sm80/Mma.cuh"

namespace tw {

template <class Element> __device__ __forceinline__ UInt32 packPair(float x0, float x1) {
  UInt32 planes[1];
  Pack<Element>::apply(x0, x1, planes);
  return planes[0];
}

/// Stores columns [col0, col0 + N) of rows [row0, row0 + M) below `rowLimit`; columns from `Dim` on are padding.
/// F32 goes straight from registers: four lanes fill a 32-byte sector. 16-bit types pass through the warp's own rows
/// [stageRow, stageRow + M) of `stage`, at columns [stageCol, stageCol + N), to leave as 16-byte units; no other
/// warp may still read those.
template <int Dim, int M, int N, class Element, class Stage>
__device__ __forceinline__ void storeTile(Element *to, Int64 rowStride, const Accumulator<M, N> &sums, int row0,
                                          int rowLimit, int col0, const Stage &stage, int stageRow, int stageCol) {
  if constexpr (Format<Element>::planes > 1) {
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int row = row0 + fragmentRow(i, 2 * half);
        float *line = reinterpret_cast<float *>(to + Int64(row) * rowStride);
        if (row < rowLimit) {
#pragma unroll
          for (int j = 0; j < N / 8; ++j)
            if (col0 + j * 8 < Dim)
              *reinterpret_cast<float2 *>(line + col0 + fragmentCol(j, 0)) =
                  make_float2(sums.x[i][j][2 * half], sums.x[i][j][2 * half + 1]);
        }
      }
  } else {
    UInt32 base = stage.address + stageRow * Stage::pitch + stageCol * 2;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < N / 8; ++j)
          storeShared4(base + fragmentRow(i, 2 * half) * Stage::pitch + fragmentCol(j, 0) * 2,
                       packPair<Element>(sums.x[i][j][2 * half], sums.x[i][j][2 * half + 1]));
    __syncwarp();
    // Not unrolled as a whole: it runs once a block, and text costs compile time.
    constexpr int units = N / 8, rowStep = 32 / units;
    int lane = threadIdx.x % 32;
    if constexpr (32 % units == 0) { // a lane keeps its column
      int row = lane / units, col = lane % units * 8;
      int rowsLeft = col0 + col < Dim ? rowLimit - row0 - row : 0;
      Element *unit = to + Int64(row0 + row) * rowStride + col0 + col;
      base += row * Stage::pitch + col * 2;
#pragma unroll 4
      for (int step = 0; step < M; step += rowStep, unit += rowStep * rowStride, base += rowStep * Stage::pitch)
        storeGlobal16If(step < rowsLeft, unit, loadShared16(base));
    } else {
#pragma unroll 2
      for (int index = lane; index < M * units; index += 32) {
        int row = index / units, unit = index % units;
        if (row0 + row < rowLimit && col0 + unit * 8 < Dim)
          storeGlobal16(to + Int64(row0 + row) * rowStride + col0 + unit * 8,
                        loadShared16(base + row * Stage::pitch + unit * 16));
      }
    }
    __syncwarp();
  }
}

} // namespace tw
