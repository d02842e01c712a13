// Positions along the sequences: the answers of the generated bounds and class functions, and tables.
#pragma once
#include "common/Args.cuh"
#include "common/TileWalk.cuh"

namespace tw {

/// floor(a / b) for b > 0.
template <class Integer> __device__ __forceinline__ Integer floorDiv(Integer a, Integer b) {
  Integer quotient = a / b;
  return quotient * b > a ? quotient - 1 : quotient;
}

/// What the mask leaves along one axis: positions [begin, end) hold every visible one, all of [fullBegin, fullEnd) are
/// visible for the whole owned tile.
struct PositionBounds {
  int begin, end, fullBegin, fullEnd;
};

/// The tiles of `Rows` positions that those positions fall into.
template <int Rows> __device__ __forceinline__ TileSpan tilesOf(PositionBounds bounds) {
  TileSpan span;
  span.first = bounds.begin / Rows;
  span.last = bounds.begin < bounds.end ? (bounds.end + Rows - 1) / Rows : span.first;
  span.fullFirst = (bounds.fullBegin + Rows - 1) / Rows;
  span.fullLast = bounds.fullEnd / Rows;
  return span;
}

/// As they are, but nothing counts as full: for an owned tile that crosses its sequence's end.
__device__ __forceinline__ PositionBounds nothingFullUnless(bool inside, PositionBounds bounds) {
  if (!inside)
    bounds.fullEnd = 0;
  return bounds;
}

template <class Element, class Position>
__device__ __forceinline__ Element readTable(const Table &table, Int64 batch, Position at) {
  const Element *row = static_cast<const Element *>(table.data) + batch * table.batchStride;
  return row[at];
}

struct TableBounds {
  int min, max;
};

/// Extremes of a table over positions first..last, from its extents of 16 elements each. An empty range constrains
/// nothing and is contradicted by everything.
__device__ __forceinline__ TableBounds tableBounds(const Table &table, Int64 batch, Int64 first, Int64 last) {
  const int *low = table.tileMin + batch * table.extentBatchStride, *high = table.tileMax + batch * table.extentBatchStride;
  TableBounds bounds = {0x7fffffff, int(0x80000000)};
  for (Int64 at = first / 16; at * 16 <= last; ++at) {
    bounds.min = min(bounds.min, low[at]);
    bounds.max = max(bounds.max, high[at]);
  }
  return bounds;
}

} // namespace tw
