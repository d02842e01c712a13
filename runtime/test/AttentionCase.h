// A small attention problem with its data, and standard attention written a second time, from the formulas alone: one
// long-double sum after the other, masks and scores as C++ functions instead of expressions. The references' tests
// hold the library to it.
#pragma once

#include "tilewright/reference/Attention.h"
#include "tilewright/tensor/Random.h"
#include <cmath>
#include <doctest/doctest.h>
#include <functional>
#include <limits>

namespace tilewright::test {

struct AttentionCase {
  Problem problem;
  RandomTensors data;
  std::vector<expr::TableData> tables;
  using Position = expr::Point;
  std::function<bool(const Position &)> visible = [](const Position &) { return true; };
  std::function<double(double, const Position &)> score = [](double s, const Position &) { return s; };

  AttentionInputs inputs() const { return {data.q.view(), data.k.view(), data.v.view(), data.dO.view(), tables}; }
};

/// Normal data of the given type (F64 for exact differences) in the problem's shape.
inline void fill(AttentionCase &c, ElementType type, uint64_t seed) {
  const Problem &p = c.problem;
  const std::pair<Tensor *, TensorShape> parts[] = {
      {&c.data.q, shapeOfQ(p)}, {&c.data.k, shapeOfK(p)}, {&c.data.v, shapeOfV(p)}, {&c.data.dO, shapeOfO(p)}};
  uint64_t stream = 0;
  for (const auto &[tensor, shape] : parts) {
    auto made = Tensor::zeros(type, shape, p.layout);
    REQUIRE(made);
    *tensor = std::move(*made);
    REQUIRE(fillNormal(*tensor, seed, stream++));
  }
}

struct BruteForceRow {
  std::vector<long double> o;
  long double lse = 0;
};

/// O and LSE of one query row.
inline BruteForceRow bruteForceRow(const AttentionCase &c, int64_t b, int64_t h, int64_t row) {
  const Problem &p = c.problem;
  const int64_t headKV = h / (p.headsQ / p.headsKV);
  const double scale = p.scale ? *p.scale : 1 / std::sqrt(static_cast<double>(p.dimQK));
  std::vector<std::pair<int64_t, long double>> scores;
  for (int64_t key = 0; key < p.seqKV; ++key) {
    const AttentionCase::Position at{row, key, p.seqQ, p.seqKV, h, b, 0};
    if (!c.visible(at)) continue;
    long double sum = 0;
    for (int64_t d = 0; d < p.dimQK; ++d)
      sum += static_cast<long double>(c.data.q.at(b, h, row, d)) * c.data.k.at(b, headKV, key, d);
    scores.emplace_back(key, c.score(static_cast<double>(sum * scale), at));
  }
  BruteForceRow result;
  result.o.resize(static_cast<size_t>(p.dimV));
  long double most = -std::numeric_limits<long double>::infinity(), sum = 0;
  for (const auto &[key, t] : scores)
    most = std::max(most, t);
  if (scores.empty()) {
    result.lse = most;
    return result;
  }
  for (const auto &[key, t] : scores)
    sum += std::exp(t - most);
  for (const auto &[key, t] : scores)
    for (int64_t d = 0; d < p.dimV; ++d)
      result.o[static_cast<size_t>(d)] += std::exp(t - most) / sum * c.data.v.at(b, headKV, key, d);
  result.lse = most + std::log(sum);
  return result;
}

/// sum of O * dO: the function whose gradients backward computes.
inline long double bruteForceLoss(const AttentionCase &c) {
  const Problem &p = c.problem;
  long double loss = 0;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.headsQ; ++h)
      for (int64_t row = 0; row < p.seqQ; ++row) {
        const BruteForceRow result = bruteForceRow(c, b, h, row);
        for (int64_t d = 0; d < p.dimV; ++d)
          loss += result.o[static_cast<size_t>(d)] * c.data.dO.at(b, h, row, d);
      }
  return loss;
}

/// Derivative of the loss by one element of q, k or v, by central differences (error about h^2).
inline double bruteForceGradient(AttentionCase &c, Tensor &input, int64_t b, int64_t h, int64_t row, int64_t d) {
  constexpr double step = 1e-5;
  const double value = input.at(b, h, row, d);
  input.set(b, h, row, d, value + step);
  const long double above = bruteForceLoss(c);
  input.set(b, h, row, d, value - step);
  const long double below = bruteForceLoss(c);
  input.set(b, h, row, d, value);
  return static_cast<double>((above - below) / (2 * step));
}

} // namespace tilewright::test
