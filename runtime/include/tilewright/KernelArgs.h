// Run-time arguments of every attention kernel. One plain struct, the same bytes on CPU and GPU: generated CUDA
// declares it in templates/common/Args.cuh, the CPU target reads it by offset. All strides are in elements.
#pragma once

#include "tilewright/Export.h"
#include <cstdint>

namespace tilewright TILEWRIGHT_PUBLIC {

/// A (batch, head, row, dim) view; dim is contiguous.
struct TensorRef {
  void *data = nullptr;
  int64_t batchStride = 0, headStride = 0, rowStride = 0;
};

/// A table read by a mask or score expression. Elements are int32 or float32, the last axis is contiguous.
struct TableRef {
  const void *data = nullptr;
  int64_t batchStride = 0; ///< 0 unless the table's first axis is B.
  /// Smallest and largest element in each tile of rows, for tables with a Q or K axis: what tile classification
  /// reads. Entry t covers elements [t * extentTile, (t + 1) * extentTile) of one batch entry.
  const int32_t *tileMin = nullptr, *tileMax = nullptr;
  int64_t extentBatchStride = 0;
};

inline constexpr int kMaxTables = 8;
/// Elements a TableRef's extents cover each. Every tile size is a multiple of it.
inline constexpr int kTableExtentTile = 16;

struct KernelArgs {
  TensorRef q, k, v, o;
  TensorRef dO, dQ, dK, dV;
  float *lse = nullptr;   ///< (batch, headsQ, seqQ), natural log
  float *delta = nullptr; ///< (batch, headsQ, seqQ), rowsum(dO * O)
  int32_t batch = 0, headsQ = 0, headsKV = 0, seqQ = 0, seqKV = 0;
  float scale = 0;
  TableRef tables[kMaxTables]; ///< In the order of Problem::tables.
  /// Workspace of the fused backward: dqSumsBytes() bytes, 16-byte aligned, zero before Fused runs. Tiles of tile_q
  /// query rows, (batch, headsQ, tiles); inside a tile fp32 fragments of 16 x 8 (templates/sm80/Reduce.cuh).
  float *dqSums = nullptr;
  /// (batch, headsQ, seqQ), or null. What rounding lse to fp32 left out: a probability is exp(s - lse - lseRest). It
  /// matters where scores are large; beside 3e38, lse has no room for the logarithm of the sum at all. Forward writes it
  /// for the gradients of the same target; without it they take lse as it stands.
  float *lseRest = nullptr;
  /// Workspace of a forward that splits keys: partialsBytes() bytes, 64-byte aligned. Forward writes the states of all
  /// parts, Merge reads them. (batch, headsQ, q tiles, parts), of packed heads (batch, headsKV, ...); each state is two
  /// values a row (tile_q floats each), then o (tile_q x dimV), in the family's own form and order.
  float *partials = nullptr;
};

static_assert(sizeof(TensorRef) == 32 && sizeof(TableRef) == 40);
static_assert(sizeof(KernelArgs) == 8 * 32 + 16 + 24 + kMaxTables * 40 + 24);

} // namespace tilewright
