#include "tilewright/tensor/Tensor.h"
#include "tilewright/tensor/Half.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <vector>

namespace tilewright {
namespace {

TensorRef contiguous(const void *data, const TensorShape &shape, Layout layout) {
  TensorRef ref;
  ref.data = const_cast<void *>(data);
  ref.batchStride = shape.heads * shape.rows * shape.dim;
  ref.headStride = layout == Layout::BHSD ? shape.rows * shape.dim : shape.dim;
  ref.rowStride = layout == Layout::BHSD ? shape.dim : shape.heads * shape.dim;
  return ref;
}

template <class Real> void widen(ElementType type, const void *from, int64_t count, Real *to) {
  const auto *words = static_cast<const uint16_t *>(from);
  switch (type) {
  case ElementType::F32:
    std::copy_n(static_cast<const float *>(from), count, to);
    return;
  case ElementType::F64:
    std::copy_n(static_cast<const double *>(from), count, to);
    return;
  case ElementType::I32:
    std::copy_n(static_cast<const int32_t *>(from), count, to);
    return;
  case ElementType::F16:
    for (int64_t i = 0; i < count; ++i)
      to[i] = floatFromHalf(words[i]);
    return;
  case ElementType::BF16:
    for (int64_t i = 0; i < count; ++i)
      to[i] = floatFromBFloat16(words[i]);
    return;
  }
}

template <class Real> void narrow(ElementType type, const Real *from, int64_t count, void *to) {
  auto *words = static_cast<uint16_t *>(to);
  switch (type) {
  case ElementType::F32:
    std::copy_n(from, count, static_cast<float *>(to));
    return;
  case ElementType::F64:
    std::copy_n(from, count, static_cast<double *>(to));
    return;
  case ElementType::I32:
    std::copy_n(from, count, static_cast<int32_t *>(to));
    return;
  case ElementType::F16:
    for (int64_t i = 0; i < count; ++i)
      words[i] = halfFromFloat(static_cast<float>(from[i]));
    return;
  case ElementType::BF16:
    for (int64_t i = 0; i < count; ++i)
      words[i] = bfloat16FromFloat(static_cast<float>(from[i]));
    return;
  }
}

} // namespace

Expected<int64_t> TensorShape::elements() const {
  int64_t count = 1;
  bool empty = false;
  for (int64_t extent : {batch, heads, rows, dim}) {
    if (extent < 0) return fail(Stage::Input, fmt::format("shape {}: a dimension is negative", text(Layout::BHSD)));
    empty |= extent == 0;
    if (extent != 0 && __builtin_mul_overflow(count, extent, &count))
      return fail(Stage::Input, fmt::format("shape {}: more elements than 64-bit indices reach", text(Layout::BHSD)));
  }
  return empty ? 0 : count;
}

std::string TensorShape::text(Layout layout) const {
  return layout == Layout::BSHD ? fmt::format("(batch {}, seq {}, heads {}, dim {})", batch, rows, heads, dim)
                                : fmt::format("(batch {}, heads {}, seq {}, dim {})", batch, heads, rows, dim);
}

TensorView::TensorView(const void *data, ElementType type, TensorShape shape, Layout layout)
    : memory(contiguous(data, shape, layout)), elementType(type), dims(shape), isValid(true) {}

TensorView::TensorView(const TensorRef &ref, ElementType type, TensorShape shape)
    : memory(ref), elementType(type), dims(shape), isValid(true) {}

const void *TensorView::rowData(int64_t b, int64_t h, int64_t row) const {
  const int64_t offset = b * memory.batchStride + h * memory.headStride + row * memory.rowStride;
  return static_cast<const char *>(memory.data) + offset * sizeInBytes(elementType);
}

double TensorView::at(int64_t b, int64_t h, int64_t row, int64_t d) const {
  double value = 0;
  widen(elementType, static_cast<const char *>(rowData(b, h, row)) + d * sizeInBytes(elementType), 1, &value);
  return value;
}

void TensorView::copyRow(int64_t b, int64_t h, int64_t row, double *to) const {
  widen(elementType, rowData(b, h, row), dims.dim, to);
}

void TensorView::copyRow(int64_t b, int64_t h, int64_t row, float *to) const {
  widen(elementType, rowData(b, h, row), dims.dim, to);
}

Expected<Tensor> Tensor::zeros(ElementType type, TensorShape shape, Layout layout, std::string_view name) {
  auto elements = shape.elements();
  if (!elements) return propagate(elements);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(*elements, sizeInBytes(type), &bytes))
    return fail(Stage::Input,
                fmt::format("{}: shape {} has more bytes than 64-bit sizes count", name, shape.text(layout)));
  auto memory = AlignedBuffer::zeros(bytes, fmt::format("{} {}", name, shape.text(layout)));
  if (!memory) return propagate(memory);
  return adopt(std::move(*memory), type, shape, layout, name);
}

Expected<Tensor> Tensor::adopt(AlignedBuffer memory, ElementType type, TensorShape shape, Layout layout,
                               std::string_view name) {
  auto elements = shape.elements();
  if (!elements) return propagate(elements);
  if (memory.size() % sizeInBytes(type) != 0 || memory.size() / sizeInBytes(type) != *elements)
    return fail(Stage::Input, fmt::format("{}: shape {} has {} elements of {}, but the memory holds {} bytes", name,
                                          shape.text(layout), *elements, toString(type), memory.size()));
  Tensor tensor;
  tensor.memory = std::move(memory);
  tensor.elementType = type;
  tensor.dims = shape;
  tensor.order = layout;
  tensor.isValid = true;
  return tensor;
}

void *Tensor::rowData(int64_t b, int64_t h, int64_t row) {
  const TensorRef ref = contiguous(memory.data(), dims, order);
  const int64_t offset = b * ref.batchStride + h * ref.headStride + row * ref.rowStride;
  return memory.data() + offset * sizeInBytes(elementType);
}

void Tensor::set(int64_t b, int64_t h, int64_t row, int64_t d, double value) {
  narrow(elementType, &value, 1, static_cast<char *>(rowData(b, h, row)) + d * sizeInBytes(elementType));
}

void Tensor::setRow(int64_t b, int64_t h, int64_t row, const double *from) {
  narrow(elementType, from, dims.dim, rowData(b, h, row));
}

void Tensor::setRow(int64_t b, int64_t h, int64_t row, const float *from) {
  narrow(elementType, from, dims.dim, rowData(b, h, row));
}

bool hasNonFinite(const TensorView &view) {
  const TensorShape &shape = view.shape();
  if (shape.dim == 0) return false; // the other dimensions may be anything then
  std::vector<float> row(static_cast<size_t>(shape.dim));
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t h = 0; h < shape.heads; ++h)
      for (int64_t r = 0; r < shape.rows; ++r) {
        view.copyRow(b, h, r, row.data());
        if (!std::all_of(row.begin(), row.end(), [](float value) { return std::isfinite(value); })) return true;
      }
  return false;
}

} // namespace tilewright
