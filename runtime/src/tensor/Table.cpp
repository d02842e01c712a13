#include "tilewright/tensor/Table.h"
#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright {
namespace {

const char *axisName(TableAxis axis) {
  switch (axis) {
  case TableAxis::Q:
    return "q";
  case TableAxis::K:
    return "k";
  case TableAxis::H:
    return "h";
  case TableAxis::B:
    return "b";
  }
  return "?";
}

} // namespace

int64_t extentTiles(int64_t extent) { return (extent + kTableExtentTile - 1) / kTableExtentTile; }

void tableExtents(const int32_t *elements, int64_t rows, int64_t extent, int64_t rowStride, int32_t *minima,
                  int32_t *maxima) {
  const int64_t tiles = extentTiles(extent);
  for (int64_t row = 0; row < rows && tiles > 0; ++row)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int32_t *first = elements + row * rowStride + tile * kTableExtentTile;
      const auto length = std::min<int64_t>(kTableExtentTile, extent - tile * kTableExtentTile);
      const auto [smallest, largest] = std::minmax_element(first, first + length);
      minima[row * tiles + tile] = *smallest;
      maxima[row * tiles + tile] = *largest;
    }
}

int64_t axisLength(TableAxis axis, const Problem &problem) {
  switch (axis) {
  case TableAxis::Q:
    return problem.seqQ;
  case TableAxis::K:
    return problem.seqKV;
  case TableAxis::H:
    return problem.headsQ;
  case TableAxis::B:
    return problem.batch;
  }
  return 0;
}

Expected<Table> Table::ofInts(std::span<const int32_t> elements, std::vector<int64_t> shape, std::string_view name) {
  return make(elements.data(), elements.size(), false, std::move(shape), name);
}

Expected<Table> Table::ofFloats(std::span<const float> elements, std::vector<int64_t> shape, std::string_view name) {
  return make(elements.data(), elements.size(), true, std::move(shape), name);
}

Expected<Table> Table::make(const void *elements, size_t count, bool floating, std::vector<int64_t> shape,
                            std::string_view name) {
  if (shape.empty() || shape.size() > 2)
    return fail(Stage::Input, fmt::format("table {}: expected 1 or 2 axes, found {}", name, shape.size()),
                "name[x] reads a table of one axis, name[b, x] one of two");
  int64_t expected = 1;
  for (int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(expected, extent, &expected))
      return fail(Stage::Input, fmt::format("table {}: impossible shape ({})", name, fmt::join(shape, ", ")));
  if (static_cast<uint64_t>(expected) != count)
    return fail(Stage::Input, fmt::format("table {}: shape ({}) has {} elements, found {}", name,
                                          fmt::join(shape, ", "), expected, count));
  Table table;
  table.dims = std::move(shape);
  table.floating = floating;
  auto memory = AlignedBuffer::zeros(expected * 4, fmt::format("table {}", name));
  if (!memory) return propagate(memory);
  table.memory = std::move(*memory);
  if (count > 0) std::memcpy(table.memory.data(), elements, count * 4);
  if (Status built = table.buildExtents(name); !built) return propagate(built);
  return table;
}

Status Table::buildExtents(std::string_view name) {
  if (floating) return {};
  const int64_t rows = dims.size() == 2 ? dims[0] : 1, tiles = extentTiles(extent());
  for (AlignedBuffer *buffer : {&minima, &maxima}) {
    auto made = AlignedBuffer::zeros(rows * tiles * 4, fmt::format("extents of table {}", name));
    if (!made) return propagate(made);
    *buffer = std::move(*made);
  }
  tableExtents(memory.as<int32_t>(), rows, extent(), extent(), minima.as<int32_t>(), maxima.as<int32_t>());
  return {};
}

Status Table::check(const TableSpec &spec, const Problem &problem) const {
  std::vector<int64_t> expected;
  std::vector<std::string> subscripts;
  for (TableAxis axis : spec.axes) {
    expected.push_back(axisLength(axis, problem));
    subscripts.emplace_back(axisName(axis));
  }
  if (dims != expected)
    return fail(Stage::Input,
                fmt::format("table {0}: read as {0}[{1}], so expected shape ({2}), found ({3})", spec.name,
                            fmt::join(subscripts, ", "), fmt::join(expected, ", "), fmt::join(dims, ", ")));
  if (floating != spec.isFloat)
    return fail(Stage::Input, fmt::format("table {}: expected {} elements, found {}", spec.name,
                                          spec.isFloat ? "float32" : "int32", floating ? "float32" : "int32"));
  return {};
}

TableRef Table::ref() const {
  TableRef ref;
  ref.data = memory.data();
  ref.batchStride = dims.size() == 2 ? extent() : 0;
  if (!floating) {
    ref.tileMin = minima.as<int32_t>();
    ref.tileMax = maxima.as<int32_t>();
    ref.extentBatchStride = dims.size() == 2 ? extentTiles(extent()) : 0;
  }
  return ref;
}

expr::TableData Table::data() const {
  expr::TableData data;
  if (floating)
    data.floats = memory.as<float>();
  else
    data.ints = memory.as<int32_t>();
  data.extent = extent();
  return data;
}

} // namespace tilewright
