// A row-major matrix in a backend's memory; does not own it.
#pragma once

#include "tilewright/tensor/ElementType.h"

namespace tilewright::train {

struct Matrix {
  void *data = nullptr;
  int64_t rows = 0, columns = 0;
  int64_t stride = 0; ///< Elements between rows.
  ElementType type = ElementType::F32;

  static Matrix of(void *data, int64_t rows, int64_t columns, ElementType type = ElementType::F32) {
    return {data, rows, columns, columns, type};
  }
  void *at(int64_t row, int64_t column) const {
    return static_cast<char *>(data) + (row * stride + column) * sizeInBytes(type);
  }
  Matrix rowRange(int64_t begin, int64_t count) const { return {at(begin, 0), count, columns, stride, type}; }
  Matrix columnRange(int64_t begin, int64_t count) const { return {at(0, begin), rows, count, stride, type}; }
};

} // namespace tilewright::train
