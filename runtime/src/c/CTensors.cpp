#include "CTensors.h"
#include "tilewright/tensor/Table.h"
#include "tilewright/tensor/TensorShape.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <span>

namespace tilewright::c {
namespace {

// DLTensor's layout (dlpack.h, version 1): hosts hand theirs over as they are.
static_assert(sizeof(tw_tensor) == 48 && offsetof(tw_tensor, device_type) == 8 && offsetof(tw_tensor, ndim) == 16 &&
              offsetof(tw_tensor, dtype) == 20 && offsetof(tw_tensor, shape) == 24 &&
              offsetof(tw_tensor, strides) == 32 && offsetof(tw_tensor, byte_offset) == 40);

enum TypeCode : uint8_t { kInt = 0, kFloat = 2, kBFloat = 4 };

tw_dtype typeOf(DType dtype) {
  switch (dtype) {
  case DType::BF16:
    return {kBFloat, 16, 1};
  case DType::F16:
    return {kFloat, 16, 1};
  case DType::F32:
    break;
  }
  return {kFloat, 32, 1};
}

bool same(const tw_dtype &a, const tw_dtype &b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

std::string textOf(const tw_dtype &type) {
  const char *kind = type.code == kInt ? "int" : type.code == kFloat ? "float" : type.code == kBFloat ? "bfloat" : "";
  if (!*kind || type.lanes != 1)
    return fmt::format("DLPack type (code {}, {} bits, {} lanes)", type.code, type.bits, type.lanes);
  return fmt::format("{}{}", kind, type.bits);
}

std::string deviceText(int32_t type, int32_t id) {
  if (type == TW_CPU) return "the CPU";
  return type == TW_CUDA ? fmt::format("CUDA device {}", id) : fmt::format("DLPack device type {}", type);
}

std::string shapeText(std::span<const int64_t> shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

using Shape4 = std::array<int64_t, 4>;

/// A problem's shapes in the order of its layout.
Shape4 ordered(const TensorShape &shape, Layout layout) {
  if (layout == Layout::BSHD) return {shape.batch, shape.rows, shape.heads, shape.dim};
  return {shape.batch, shape.heads, shape.rows, shape.dim};
}

/// Where tensors of one launch must be and what they must be of.
class Views {
public:
  Views(const tw_attention &attention) : attention(attention), problem(attention.attention.problem()) {}

  Expected<TensorShape> shape(const char *name, const tw_tensor &tensor) const {
    if (tensor.ndim != 4 || !tensor.shape)
      return fail(Stage::Input, fmt::format("{}: expected 4 axes, {}, found {}", name,
                                            problem.layout == Layout::BSHD ? "(batch, sequence, heads, dim)"
                                                                           : "(batch, heads, sequence, dim)",
                                            tensor.shape ? tensor.ndim : 0));
    const int64_t *s = tensor.shape;
    const bool rowsFirst = problem.layout == Layout::BSHD;
    return TensorShape{s[0], s[rowsFirst ? 2 : 1], s[rowsFirst ? 1 : 2], s[3]};
  }

  Status checkPlace(const char *name, const tw_tensor &tensor) const {
    if (tensor.device_type == attention.deviceType &&
        (tensor.device_type == TW_CPU || tensor.device_id == attention.deviceId))
      return {};
    return fail(Stage::Input,
                fmt::format("{}: expected memory of {}, found {}", name,
                            deviceText(attention.deviceType, attention.deviceId),
                            deviceText(tensor.device_type, tensor.device_id)),
                "prepare the attention for the device that holds the tensors");
  }

  Expected<TensorRef> view(const char *name, const tw_tensor &tensor, const TensorShape &expected) const {
    if (!tensor.data && expected.batch && expected.rows && expected.heads)
      return fail(Stage::Input, fmt::format("{}: no data", name));
    Expected<TensorShape> found = shape(name, tensor);
    if (!found) return propagate(found);
    if (*found != expected)
      return fail(Stage::Input,
                  fmt::format("{}: expected shape {} to fit the other tensors, found {}", name,
                              shapeText(ordered(expected, problem.layout)), shapeText({tensor.shape, 4})));
    if (!same(tensor.dtype, typeOf(problem.dtype)))
      return fail(Stage::Input, fmt::format("{}: expected {} elements, as the problem says, found {}", name,
                                            textOf(typeOf(problem.dtype)), textOf(tensor.dtype)));
    if (Status status = checkPlace(name, tensor); !status) return propagate(status);
    const int64_t *s = tensor.shape;
    Shape4 strides = {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
    if (tensor.strides) strides = {tensor.strides[0], tensor.strides[1], tensor.strides[2], tensor.strides[3]};
    const bool empty = s[0] * s[1] * s[2] == 0;
    if (strides[3] != 1 && s[3] > 1 && !empty)
      return fail(Stage::Input, fmt::format("{}: expected a contiguous last axis, found stride {}", name, strides[3]),
                  "make the tensor contiguous");
    const bool rowsFirst = problem.layout == Layout::BSHD;
    return TensorRef{static_cast<char *>(tensor.data) + tensor.byte_offset, strides[0], strides[rowsFirst ? 2 : 1],
                     strides[rowsFirst ? 1 : 2]};
  }

  Expected<TableRef> table(const TableSpec &spec, const Problem &sizes, std::span<const tw_table> given,
                           TableExtents &extents) const;

private:
  const tw_attention &attention;
  const Problem &problem;
};

Expected<TableRef> Views::table(const TableSpec &spec, const Problem &sizes, std::span<const tw_table> given,
                                TableExtents &extents) const {
  const tw_table *found = nullptr;
  for (const tw_table &table : given)
    if (table.name && spec.name == table.name) found = &table;
  if (!found)
    return fail(Stage::Input, fmt::format("table '{}' is read by the mask or score but not given", spec.name));
  const tw_tensor &values = found->values;
  const std::string name = fmt::format("table '{}'", spec.name);
  std::vector<int64_t> expected;
  for (TableAxis axis : spec.axes)
    expected.push_back(axisLength(axis, sizes));
  const std::span<const int64_t> shape(values.shape, values.shape ? static_cast<size_t>(std::max(values.ndim, 0)) : 0);
  if (!std::ranges::equal(shape, expected))
    return fail(Stage::Input,
                fmt::format("{}: expected shape {}, found {}", name, shapeText(expected), shapeText(shape)));
  const tw_dtype type = spec.isFloat ? tw_dtype{kFloat, 32, 1} : tw_dtype{kInt, 32, 1};
  if (!same(values.dtype, type))
    return fail(Stage::Input, fmt::format("{}: expected {} elements, as the problem says, found {}", name, textOf(type),
                                          textOf(values.dtype)));
  if (Status status = checkPlace(name.c_str(), values); !status) return propagate(status);
  const int64_t extent = expected.back(), rows = expected.size() == 2 ? expected[0] : 1;
  if (values.strides && extent > 1 && values.strides[expected.size() - 1] != 1)
    return fail(Stage::Input, fmt::format("{}: expected a contiguous last axis, found stride {}", name,
                                          values.strides[expected.size() - 1]));
  TableRef ref;
  ref.data = static_cast<const char *>(values.data) + values.byte_offset;
  if (expected.size() == 2) ref.batchStride = values.strides ? values.strides[0] : extent;
  const bool byPosition = spec.axes.back() == TableAxis::Q || spec.axes.back() == TableAxis::K;
  if (spec.isFloat || !byPosition || rows * extent == 0) return ref;
  const int64_t tiles = extentTiles(extent);
  if (expected.size() == 2) ref.extentBatchStride = tiles;
  ref.tileMin = found->minima;
  ref.tileMax = found->maxima;
  if (ref.tileMin && ref.tileMax) return ref;
  if (attention.deviceType != TW_CPU)
    return fail(Stage::Input,
                fmt::format("{}: expected its minima and maxima, which GPU kernels leave tiles out by", name),
                "give the smallest and largest of every 16 elements in tw_table");
  int32_t *low = extents.emplace_back(2 * rows * tiles).data(), *high = low + rows * tiles;
  tableExtents(static_cast<const int32_t *>(ref.data), rows, extent, ref.batchStride, low, high);
  ref.tileMin = low;
  ref.tileMax = high;
  return ref;
}

Status checkRange(const char *name, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return {};
  return fail(Stage::Input, fmt::format("{}: expected 0 to {}, found {}", name, most, value));
}

/// The problem with the sizes of these tensors.
Expected<Problem> stated(const tw_attention &attention, const tw_attention_args &given) {
  Problem problem = attention.attention.problem();
  const Views views(attention);
  Expected<TensorShape> q = views.shape("q", given.q);
  if (!q) return propagate(q);
  Expected<TensorShape> k = views.shape("k", given.k);
  if (!k) return propagate(k);
  const std::tuple<const char *, int64_t, int64_t> sizes[] = {{"batch", q->batch, kMaxBatch},
                                                              {"query heads", q->heads, kMaxHeads},
                                                              {"kv heads", k->heads, kMaxHeads},
                                                              {"query length", q->rows, kMaxSequence},
                                                              {"kv length", k->rows, kMaxSequence}};
  for (const auto &[name, value, most] : sizes)
    if (Status status = checkRange(name, value, most); !status) return propagate(status);
  problem.batch = q->batch;
  problem.headsQ = q->heads;
  problem.headsKV = k->heads;
  problem.seqQ = q->rows;
  problem.seqKV = k->rows;
  return problem;
}

/// Results have elements of their own: repeated ones would be written by several threads at once.
Status checkWritten(const char *name, const TensorRef &ref, const TensorShape &shape) {
  const std::pair<int64_t, int64_t> axes[] = {
      {ref.batchStride, shape.batch}, {ref.headStride, shape.heads}, {ref.rowStride, shape.rows}};
  if (std::ranges::any_of(axes, [](const auto &axis) { return axis.first == 0 && axis.second > 1; }))
    return fail(Stage::Input, fmt::format("{}: is written, but an axis of several entries has stride 0", name));
  return {};
}

KernelArgs sized(const Problem &problem, const tw_attention_args &given) {
  KernelArgs args = argsFor(problem);
  if (given.scale != 0) args.scale = given.scale;
  return args;
}

} // namespace

Expected<KernelArgs> sizesOf(const tw_attention &attention, const tw_attention_args &given) {
  Expected<Problem> problem = stated(attention, given);
  if (!problem) return propagate(problem);
  return sized(*problem, given);
}

Expected<KernelArgs> argumentsOf(const tw_attention &attention, const tw_attention_args &given, Direction direction,
                                 TableExtents &extents) {
  Expected<Problem> sizes = stated(attention, given);
  if (!sizes) return propagate(sizes);
  const Problem &p = *sizes;
  KernelArgs args = sized(p, given);
  const Views views(attention);
  struct Part {
    const char *name;
    const tw_tensor &given;
    TensorShape shape;
    TensorRef &ref;
    bool isWritten;
  };
  const bool forward = direction == Direction::Forward;
  const Part parts[] = {
      {"q", given.q, shapeOfQ(p), args.q, false},      {"k", given.k, shapeOfK(p), args.k, false},
      {"v", given.v, shapeOfV(p), args.v, false},      {"o", given.o, shapeOfO(p), args.o, forward},
      {"d_o", given.d_o, shapeOfO(p), args.dO, false}, {"d_q", given.d_q, shapeOfQ(p), args.dQ, true},
      {"d_k", given.d_k, shapeOfK(p), args.dK, true},  {"d_v", given.d_v, shapeOfV(p), args.dV, true}};
  if (!std::isfinite(args.scale))
    return fail(Stage::Input, fmt::format("scale: expected a finite number, found {}", args.scale));
  const size_t used = forward ? 4 : 8;
  for (const Part &part : std::span(parts).first(used)) {
    Expected<TensorRef> ref = views.view(part.name, part.given, part.shape);
    if (!ref) return propagate(ref);
    part.ref = *ref;
    if (part.isWritten)
      if (Status status = checkWritten(part.name, part.ref, part.shape); !status) return propagate(status);
  }
  args.lse = given.lse;
  args.lseRest = given.lse_rest;
  if (given.table_count < 0 || (given.table_count && !given.tables))
    return fail(Stage::Input, fmt::format("tables: expected {}, found null", given.table_count));
  const std::span<const tw_table> tables(given.tables, static_cast<size_t>(given.table_count));
  for (size_t i = 0; i < p.tables.size(); ++i) {
    Expected<TableRef> ref = views.table(p.tables[i], p, tables, extents);
    if (!ref) return propagate(ref);
    args.tables[i] = *ref;
  }
  const int64_t needed = attention.attention.workspaceBytes(direction, args);
  if (needed > 0 && (!given.workspace || given.workspace_bytes < needed))
    return fail(Stage::Input,
                fmt::format("workspace: expected {} bytes, found {}", needed,
                            given.workspace ? fmt::format("{}", given.workspace_bytes) : "null"),
                "tw_attention_workspace() says how many");
  if (needed > 0) attention.attention.useWorkspace(direction, given.workspace, args);
  return args;
}

} // namespace tilewright::c
