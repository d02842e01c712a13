#include "CpuBackend.h"
#include "tilewright/tensor/Half.h"
#include <algorithm>
#include <cstring>

namespace tilewright::train {
namespace {

constexpr int64_t kRows = 16;    ///< That a thread takes at a time.
constexpr int64_t kColumns = 64; ///< Of the embedding's gradient that a thread takes: whole cache lines.
/// Rows whose share of a weight's gradient is summed apart: it decides the order of additions, threads do not.
constexpr int64_t kWeightRows = 64;

const float *floats(const Matrix &m, int64_t row) { return static_cast<const float *>(m.at(row, 0)); }
float *mutableFloats(const Matrix &m, int64_t row) { return static_cast<float *>(m.at(row, 0)); }

/// to[i] = or += from[i], rounded to the gradient's type.
void store(const Matrix &to, int64_t row, int64_t begin, int64_t end, const float *from, bool add) {
  for (int64_t i = begin; i < end; ++i)
    if (to.type == ElementType::F32) {
      float &value = static_cast<float *>(to.at(row, 0))[i];
      value = add ? value + from[i] : from[i];
    } else {
      uint16_t &value = static_cast<uint16_t *>(to.at(row, 0))[i];
      value = bfloat16FromFloat(add ? floatFromBFloat16(value) + from[i] : from[i]);
    }
}

} // namespace

Status CpuBackend::embedding(const int32_t *tokens, const Matrix &table, const Matrix &y) {
  parallel(y.rows, kRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const void *row = table.at(tokens[r], 0);
      const size_t count = static_cast<size_t>(y.columns);
      if (table.type == ElementType::F32)
        std::memcpy(y.at(r, 0), row, count * 4);
      else
        floatFromBFloat16({static_cast<const uint16_t *>(row), count}, {mutableFloats(y, r), count});
    }
  });
  return {};
}

Status CpuBackend::embeddingBackward(const int32_t *tokens, const Matrix &dY, const Matrix &dTable, bool add) {
  if (!add)
    if (Status status = clear(dTable.data, dTable.rows * dTable.stride * sizeInBytes(dTable.type)); !status)
      return status;
  // Threads share columns, not tokens: two of the same token may not meet, and the order stays the batch's.
  parallel((dTable.columns + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < dY.rows; ++r)
      store(dTable, tokens[r], begin * kColumns, std::min(end * kColumns, dTable.columns), floats(dY, r), true);
  });
  return {};
}

Status CpuBackend::rmsNorm(const Matrix &x, const Matrix &addend, const Matrix &sum, const Matrix &weight,
                           double epsilon, const Matrix &y, float *inverse) {
  Expected<Matrix> w = widened(weight, 1);
  if (!w) return propagate(w);
  parallel(x.rows, kRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      inverse[r] = loops.norm(floats(x, r), addend.data ? floats(addend, r) : nullptr,
                              addend.data ? mutableFloats(sum, r) : nullptr, floats(*w, 0), static_cast<float>(epsilon),
                              mutableFloats(y, r), x.columns);
  });
  return {};
}

Status CpuBackend::rmsNormBackward(const Matrix &dY, const Matrix &x, const Matrix &weight, const float *inverse,
                                   const Matrix &dX, bool addToX, const Matrix &dWeight, bool addToWeight) {
  Expected<Matrix> w = widened(weight, 1);
  if (!w) return propagate(w);
  const int64_t blocks = (x.rows + kWeightRows - 1) / kWeightRows;
  Expected<float *> sums = scratch(std::max<int64_t>(blocks, 1) * x.columns, 2);
  if (!sums) return propagate(sums);
  std::fill_n(*sums, std::max<int64_t>(blocks, 1) * x.columns, 0.0f);
  parallel(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t r = b * kWeightRows; r < std::min(x.rows, (b + 1) * kWeightRows); ++r)
        loops.normBackward(floats(dY, r), floats(x, r), floats(*w, 0), inverse[r], mutableFloats(dX, r), addToX,
                           *sums + b * x.columns, x.columns);
  });
  for (int64_t b = 1; b < blocks; ++b)
    loops.add(*sums + b * x.columns, *sums, x.columns);
  store(dWeight, 0, 0, x.columns, *sums, addToWeight);
  return {};
}

Status CpuBackend::rope(const Matrix &x, int64_t headDim, int64_t length, int64_t start, const RotaryTables &tables,
                        bool inverse) {
  parallel(x.rows, kRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = (start + r % length) * tables.pairs;
      for (int64_t column = 0; column < x.columns; column += headDim)
        loops.rotate(mutableFloats(x, r) + column, tables.cosines + at, tables.sines + at, inverse ? -1.0f : 1.0f,
                     tables.pairs);
    }
  });
  return {};
}

Status CpuBackend::swiglu(const Matrix &gate, const Matrix &up, const Matrix &y) {
  parallel(y.rows, kRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      loops.swiglu(floats(gate, r), floats(up, r), mutableFloats(y, r), y.columns);
  });
  return {};
}

Status CpuBackend::swigluBackward(const Matrix &gate, const Matrix &up, const Matrix &dY, const Matrix &dGate,
                                  const Matrix &dUp) {
  parallel(dY.rows, kRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      loops.swigluBackward(floats(gate, r), floats(up, r), floats(dY, r), mutableFloats(dGate, r),
                           mutableFloats(dUp, r), dY.columns);
  });
  return {};
}

Status CpuBackend::crossEntropy(const Matrix &logits, const int32_t *targets, double *loss, bool gradient) {
  std::vector<double> losses(static_cast<size_t>(logits.rows));
  parallel(logits.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      if (targets[r] >= 0)
        losses[static_cast<size_t>(r)] =
            loops.crossEntropy(mutableFloats(logits, r), targets[r], gradient, logits.columns);
      else if (gradient)
        std::memset(logits.at(r, 0), 0, static_cast<size_t>(logits.columns) * 4);
  });
  for (double value : losses)
    *loss += value;
  return {};
}

} // namespace tilewright::train
