// Host tensors of attention: an owning one and a view. Both address elements by (batch, head, row, dim); the layout
// decides the strides. Neither is synchronised: concurrent reads are fine, concurrent writes to one element are not.
#pragma once

#include "tilewright/KernelArgs.h"
#include "tilewright/tensor/AlignedBuffer.h"
#include "tilewright/tensor/ElementType.h"
#include "tilewright/tensor/TensorShape.h"
#include <span>

namespace tilewright {

/// Does not own its memory. Strides are in elements; dim is contiguous.
class TensorView {
public:
  TensorView() = default;
  TensorView(const void *data, ElementType type, TensorShape shape, Layout layout);
  /// A caller's memory with its own strides.
  TensorView(const TensorRef &ref, ElementType type, TensorShape shape);

  ElementType type() const { return elementType; }
  const TensorShape &shape() const { return dims; }
  const void *data() const { return memory.data; }
  /// False for a default-constructed view: no tensor at all, as opposed to an empty one.
  bool valid() const { return isValid; }
  /// For KernelArgs, whose one type serves inputs and outputs: a kernel writes only through its outputs.
  TensorRef ref() const { return memory; }

  /// One element's value. Exact: every element type fits a double.
  double at(int64_t b, int64_t h, int64_t row, int64_t d) const;
  /// The `dim` elements of a row, converted. To float: rounded if the tensor is F64 or I32, else exact.
  void copyRow(int64_t b, int64_t h, int64_t row, double *to) const;
  void copyRow(int64_t b, int64_t h, int64_t row, float *to) const;

private:
  const void *rowData(int64_t b, int64_t h, int64_t row) const;

  TensorRef memory;
  ElementType elementType = ElementType::F32;
  TensorShape dims;
  bool isValid = false;
};

/// Owns contiguous memory (see AlignedBuffer). Movable, not copyable.
class Tensor {
public:
  Tensor() = default;

  /// All elements 0. `name` stands in the error of an allocation that fails.
  static Expected<Tensor> zeros(ElementType type, TensorShape shape, Layout layout, std::string_view name = "tensor");
  /// Takes over memory that holds the elements in order; its size must be theirs.
  static Expected<Tensor> adopt(AlignedBuffer memory, ElementType type, TensorShape shape, Layout layout,
                                std::string_view name = "tensor");

  ElementType type() const { return elementType; }
  const TensorShape &shape() const { return dims; }
  Layout layout() const { return order; }
  void *data() { return memory.data(); }
  const void *data() const { return memory.data(); }
  int64_t bytes() const { return memory.size(); }
  /// False for a default-constructed tensor.
  bool valid() const { return isValid; }

  TensorView view() const { return isValid ? TensorView(memory.data(), elementType, dims, order) : TensorView(); }
  TensorRef ref() const { return view().ref(); }

  double at(int64_t b, int64_t h, int64_t row, int64_t d) const { return view().at(b, h, row, d); }
  /// Rounds to the element type, to nearest even (by way of float for the 16-bit types).
  void set(int64_t b, int64_t h, int64_t row, int64_t d, double value);
  /// Writes the `dim` elements of a row, rounded as set() does.
  void setRow(int64_t b, int64_t h, int64_t row, const double *from);
  void setRow(int64_t b, int64_t h, int64_t row, const float *from);

private:
  void *rowData(int64_t b, int64_t h, int64_t row);

  AlignedBuffer memory;
  ElementType elementType = ElementType::F32;
  TensorShape dims;
  Layout order = Layout::BSHD;
  bool isValid = false;
};

/// Whether any element is NaN or infinite.
bool hasNonFinite(const TensorView &view);

} // namespace tilewright
