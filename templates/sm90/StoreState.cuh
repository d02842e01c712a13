// A warp's 16 rows of a part's state (common/State.cuh), from registers: four lanes fill a sector of 32 bytes.
#pragma once
#include "common/State.cuh"
#include "sm90/Softmax.cuh"

namespace tw {

/// Rows from `row0` of the tile on, those below `rowLimit`; `rows` and `o` as finishRows() leaves them.
template <int Rows, int Dim, int D>
__device__ __forceinline__ void storeState(const State<Rows, Dim> &to, const Accumulator<16, D> &o,
                                           const OnlineRows &rows, int row0, int rowLimit) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = row0 + fragmentRow(0, 2 * half);
    if (row >= rowLimit) continue;
    float *line = to.o(row);
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      if (D == Dim || fragmentCol(j, 0) < Dim)
        *reinterpret_cast<float2 *>(line + fragmentCol(j, 0)) =
            make_float2(o.x[0][j][2 * half], o.x[0][j][2 * half + 1]);
    if (threadIdx.x % 4 == 0) to.lse(row) = rows.max[half], to.rest(row) = rows.sum[half];
  }
}

/// The state of rows that saw no key.
template <int Rows, int Dim>
__device__ __forceinline__ void storeEmptyState(const State<Rows, Dim> &to, int row0, int rowLimit) {
  int row = row0 + int(threadIdx.x % 32);
  if (row < min(row0 + 16, rowLimit)) to.lse(row) = minusInfinity(), to.rest(row) = 0.f;
}

} // namespace tw
