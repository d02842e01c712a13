// States of a softmax whose keys are cut into parts: what one part's block leaves in memory for the merge. A state is
// LSE over the part's keys, what rounding it left out, and O normalised by that LSE: fp32, `Rows` of each, O by rows of
// `Dim`. Merging weighs each O by exp(LSE + rest - total), so cutting changes a result by rounding alone. A row that saw
// no key in a part has LSE -inf, and its O is not read.
#pragma once
#include "common/Types.cuh"

namespace tw {

template <int Rows, int Dim> struct State {
  static constexpr int floats = Rows * (Dim + 2);
  float *data;
  /// State of one part of tile `tile` of the whole grid.
  __device__ __forceinline__ State(float *partials, Int64 tile, int part, int parts)
      : data(partials + (tile * parts + part) * floats) {}
  __device__ __forceinline__ float &lse(int row) const { return data[row]; }
  __device__ __forceinline__ float &rest(int row) const { return data[Rows + row]; }
  __device__ __forceinline__ float *o(int row) const { return data + 2 * Rows + row * Dim; }
};

} // namespace tw
