// Parameters as matrices, and products with several of them at once.
#include "TransformerState.h"
#include <algorithm>

namespace tilewright::train {
namespace {

Projection arrange(std::vector<Matrix> parts) {
  std::sort(parts.begin(), parts.end(), [](const Matrix &a, const Matrix &b) { return std::less<>()(a.data, b.data); });
  Matrix joined = Matrix::of(parts[0].data, 0, parts[0].columns, parts[0].type);
  for (const Matrix &part : parts) {
    if (part.data != joined.at(joined.rows, 0)) return {std::move(parts), {}};
    joined.rows += part.rows;
  }
  return {std::move(parts), joined};
}

} // namespace

Matrix Transformer::State::parameter(int i, ParameterHost &host) const {
  const dist::Operand value = host.value(i);
  const bool inLayer = i > index.embedding() && i < index.norm();
  const bool down = inLayer && (i - 1) % ParameterIndex::PerLayer == ParameterIndex::Down;
  const int64_t columns = down ? config.hidden : config.width;
  return Matrix::of(value.data, value.elements / columns, columns, value.type);
}

Matrix Transformer::State::gradient(int i, ParameterHost &host) const {
  const dist::GradientView view = host.gradient(i);
  const Matrix like = parameter(i, host);
  return Matrix::of(view.data, like.rows, like.columns, view.type);
}

Projection Transformer::State::projection(std::span<const int> parameters, ParameterHost &host) const {
  std::vector<Matrix> parts;
  for (int i : parameters)
    parts.push_back(parameter(i, host));
  return arrange(std::move(parts));
}

Projection Transformer::State::gradientProjection(std::span<const int> parameters, ParameterHost &host) const {
  std::vector<Matrix> parts;
  for (int i : parameters) {
    parts.push_back(gradient(i, host));
    // Parts are added to or written as one.
    if (host.gradient(i).add != host.gradient(parameters[0]).add) return {};
  }
  return arrange(std::move(parts));
}

Status Transformer::State::project(const Matrix &x, const Projection &weights, const Matrix &y) {
  if (weights.joined.data) return backend.matmul(x, false, weights.joined, true, y, false);
  int64_t column = 0;
  for (const Matrix &w : weights.parts) {
    if (Status status = backend.matmul(x, false, w, true, y.columnRange(column, w.rows), false); !status) return status;
    column += w.rows;
  }
  return {};
}

Status Transformer::State::projectBackward(const Matrix &dY, const Matrix &x, std::span<const int> parameters,
                                           const Matrix &dX, ParameterHost &host) {
  const Projection weights = projection(parameters, host), gradients = gradientProjection(parameters, host);
  if (gradients.joined.data && weights.joined.data) {
    if (Status status = backend.matmul(dY, true, x, false, gradients.joined, host.gradient(parameters[0]).add); !status)
      return status;
  } else {
    for (int i : parameters) {
      const Matrix w = parameter(i, host);
      int64_t column = 0;
      for (int p = 0; weights.parts[static_cast<size_t>(p)].data != w.data; ++p)
        column += weights.parts[static_cast<size_t>(p)].rows;
      if (Status status =
              backend.matmul(dY.columnRange(column, w.rows), true, x, false, gradient(i, host), host.gradient(i).add);
          !status)
        return status;
    }
  }
  for (size_t i = parameters.size(); i-- > 0;)
    if (Status status = host.ready(parameters[i]); !status) return status;
  if (weights.joined.data) return backend.matmul(dY, false, weights.joined, false, dX, false);
  int64_t column = 0;
  for (const Matrix &w : weights.parts) {
    if (Status status = backend.matmul(dY.columnRange(column, w.rows), false, w, false, dX, column > 0); !status)
      return status;
    column += w.rows;
  }
  return {};
}

Matrix Transformer::State::part(const Matrix &all, int64_t l, ParameterIndex::Of which, ParameterHost &host) const {
  const bool attention = which == ParameterIndex::Q || which == ParameterIndex::K || which == ParameterIndex::V;
  const int first = index.layer(l, attention ? ParameterIndex::Q : ParameterIndex::Gate);
  const int64_t size = attention ? config.width : config.hidden;
  const void *own = host.value(index.layer(l, which)).data;
  int64_t before = 0; // parts at lower addresses
  for (int i = 0; i < (attention ? 3 : 2); ++i)
    before += std::less<>()(static_cast<const void *>(host.value(first + i).data), own);
  return all.columnRange(before * size, size);
}

} // namespace tilewright::train
