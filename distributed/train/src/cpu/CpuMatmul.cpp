#include "CpuBackend.h"
#include "tilewright/tensor/Half.h"

namespace tilewright::train {
namespace {

constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;

} // namespace

Expected<Matrix> CpuBackend::widened(const Matrix &from, int place) {
  if (from.type == ElementType::F32) return from;
  Expected<float *> memory = scratch(from.rows * from.columns, place);
  if (!memory) return propagate(memory);
  parallel(from.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      floatFromBFloat16({static_cast<const uint16_t *>(from.at(r, 0)), static_cast<size_t>(from.columns)},
                        {*memory + r * from.columns, static_cast<size_t>(from.columns)});
  });
  return Matrix::of(*memory, from.rows, from.columns);
}

Status CpuBackend::matmul(const Matrix &a, bool transposeA, const Matrix &b, bool transposeB, const Matrix &c,
                          bool add) {
  const int64_t inner = transposeA ? a.rows : a.columns;
  if (!c.rows || !c.columns) return {};
  Expected<Matrix> left = widened(a, 0), right = widened(b, 1);
  if (!left) return propagate(left);
  if (!right) return propagate(right);
  Matrix result = c;
  if (c.type != ElementType::F32) {
    Expected<float *> memory = scratch(c.rows * c.columns, 2);
    if (!memory) return propagate(memory);
    result = Matrix::of(*memory, c.rows, c.columns);
  }
  const bool direct = result.data == c.data;
  blas.sgemm(kRowMajor, transposeA ? kTranspose : kNoTranspose, transposeB ? kTranspose : kNoTranspose,
             static_cast<int>(c.rows), static_cast<int>(c.columns), static_cast<int>(inner), 1,
             static_cast<const float *>(left->data), static_cast<int>(left->stride),
             static_cast<const float *>(right->data), static_cast<int>(right->stride), direct && add ? 1 : 0,
             static_cast<float *>(result.data), static_cast<int>(result.stride));
  if (direct) return {};
  parallel(c.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      auto *to = static_cast<uint16_t *>(c.at(r, 0));
      const auto *from = static_cast<const float *>(result.at(r, 0));
      for (int64_t i = 0; i < c.columns; ++i)
        to[i] = bfloat16FromFloat(from[i] + (add ? floatFromBFloat16(to[i]) : 0));
    }
  });
  return {};
}

} // namespace tilewright::train
