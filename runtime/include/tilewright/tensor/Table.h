// A table that a mask or score expression reads: int32 or float32 over one axis, or over the batch and another axis.
// Owns its elements and, for integer tables, the smallest and largest element of every kTableExtentTile elements.
#pragma once

#include "tilewright/KernelArgs.h"
#include "tilewright/expr/Evaluator.h"
#include "tilewright/tensor/AlignedBuffer.h"
#include <span>
#include <vector>

namespace tilewright {

/// Extents of a table's row: one for every kTableExtentTile elements begun.
int64_t extentTiles(int64_t extent);
/// The smallest and largest element of each, for `rows` rows of `extent` elements that lie `rowStride` apart; results
/// are (rows, extentTiles(extent)), contiguous.
void tableExtents(const int32_t *elements, int64_t rows, int64_t extent, int64_t rowStride, int32_t *minima,
                  int32_t *maxima);

/// How many elements a table has along an axis.
int64_t axisLength(TableAxis axis, const Problem &problem);

class Table {
public:
  Table() = default;

  /// Elements are copied, row-major over `shape` (1 or 2 axes).
  static Expected<Table> ofInts(std::span<const int32_t> elements, std::vector<int64_t> shape, std::string_view name);
  static Expected<Table> ofFloats(std::span<const float> elements, std::vector<int64_t> shape, std::string_view name);

  bool isFloat() const { return floating; }
  const std::vector<int64_t> &shape() const { return dims; }
  int64_t extent() const { return dims.empty() ? 0 : dims.back(); }

  /// Whether shape and element type are what `spec` and the problem's lengths ask for: name[q] has sq elements,
  /// name[k] sk, name[h] one a query head, name[b] one a batch entry, name[b, x] batch times those.
  Status check(const TableSpec &spec, const Problem &problem) const;

  /// For a kernel. The extents are given for integer tables only.
  TableRef ref() const;
  /// For the evaluator.
  expr::TableData data() const;

private:
  static Expected<Table> make(const void *elements, size_t count, bool floating, std::vector<int64_t> shape,
                              std::string_view name);
  Status buildExtents(std::string_view name);

  AlignedBuffer memory, minima, maxima;
  std::vector<int64_t> dims;
  bool floating = false;
};

} // namespace tilewright
