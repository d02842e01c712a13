// Whose the rows of a q tile are. A tile may hold `Heads` query heads of one kv head: row r is head r % Heads of the group
// at query r / Heads of the tile. Few queries (decoding) then fill a tile, and K and V are read once for all of them.
#pragma once
#include "common/Args.cuh"

namespace tw {

/// Where the rows of a tile lie in the tensors.
template <int Heads> struct RowOwner {
  int q0, kvHead, batch;
  int rows; ///< That are some query's.
  __device__ __forceinline__ RowOwner(int q0, int tileRows, int kvHead, int batch, int seqQ)
      : q0(q0), kvHead(kvHead), batch(batch), rows(min(tileRows / Heads, seqQ - q0) * Heads) {}
  __device__ __forceinline__ bool owns(int row) const { return row < rows; }
  __device__ __forceinline__ int query(int row) const { return q0 + row / Heads; }
  __device__ __forceinline__ int head(int row) const { return kvHead * Heads + row % Heads; }
  template <class Element> __device__ __forceinline__ Element *line(const Tensor &tensor, int row) const {
    return headOf<Element>(tensor, head(row), batch) + query(row) * tensor.rowStride;
  }
  __device__ __forceinline__ float &value(float *rows, const Args &args, int row) const {
    return rowsOf(rows, args, head(row), batch)[query(row)];
  }
};

} // namespace tw
