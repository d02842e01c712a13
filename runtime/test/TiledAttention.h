// Attention as kernels compute it, in C++: keys in tiles, the softmax rescaled as its maximum grows, P and dS in the
// dtype for the second products, backward from a stored LSE and delta = rowsum(dO * O). Its sums run in another order
// than the naive computation's, its roundings are a kernel's: what the acceptance rule must let pass. On request it has
// one of the bugs that kernels have, which the rule must catch.
#pragma once

#include "AttentionCase.h"
#include "tilewright/tensor/Half.h"
#include <algorithm>

namespace tilewright::test {

enum class Bug { None, LastKeyLost, FirstTileNotRescaled, SlopeForgotten, DeltaForgotten, WrongHead, ScaleForgotten };

class TiledAttention {
public:
  Tensor o, lse, dQ, dK, dV;

  /// `slope` is the derivative of c.score.
  TiledAttention(const AttentionCase &c, std::function<double(double, const expr::Point &)> slope, Bug bug = Bug::None)
      : c(c), p(c.problem), slope(std::move(slope)), bug(bug), scale(static_cast<float>(p.effectiveScale())) {
    const ElementType type = elementType(p.dtype);
    o = make(type, shapeOfO(p));
    lse = make(ElementType::F32, shapeOfLse(p));
    dQ = make(type, shapeOfQ(p));
    dK = make(type, shapeOfK(p));
    dV = make(type, shapeOfV(p));
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.headsQ; ++h)
        for (int64_t q = 0; q < p.seqQ; ++q) {
          forwardRow(b, h, q);
          backwardRow(b, h, q);
        }
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.headsKV; ++h)
        for (int64_t k = 0; k < p.seqKV; ++k)
          backwardKey(b, h, k);
  }

private:
  static constexpr int64_t kTile = 8;

  Tensor make(ElementType type, TensorShape shape) const {
    auto tensor = Tensor::zeros(type, shape, p.layout);
    REQUIRE(tensor);
    return std::move(*tensor);
  }

  float store(float x) const {
    if (p.dtype == DType::F16) return floatFromHalf(halfFromFloat(x));
    return p.dtype == DType::BF16 ? floatFromBFloat16(bfloat16FromFloat(x)) : x;
  }

  static float at(const Tensor &t, int64_t b, int64_t h, int64_t row, int64_t d) {
    return static_cast<float>(t.at(b, h, row, d));
  }

  float dot(const Tensor &x, int64_t hx, int64_t rx, const Tensor &y, int64_t hy, int64_t ry, int64_t b) const {
    float lanes[4] = {};
    for (int64_t d = 0; d < x.shape().dim; ++d)
      lanes[d % 4] += at(x, b, hx, rx, d) * at(y, b, hy, ry, d);
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  }

  int64_t headKV(int64_t h) const { return bug == Bug::WrongHead ? h % p.headsKV : h / p.groupSize(); }
  expr::Point point(int64_t b, int64_t h, int64_t q, int64_t k) const { return {q, k, p.seqQ, p.seqKV, h, b, 0}; }
  bool seen(int64_t b, int64_t h, int64_t q, int64_t k) const {
    return c.visible(point(b, h, q, k)) && !(bug == Bug::LastKeyLost && k == p.seqKV - 1);
  }
  float product(int64_t b, int64_t h, int64_t q, int64_t k) const {
    return scale * dot(c.data.q, h, q, c.data.k, headKV(h), k, b);
  }
  float score(int64_t b, int64_t h, int64_t q, int64_t k) const {
    return static_cast<float>(c.score(product(b, h, q, k), point(b, h, q, k)));
  }

  void forwardRow(int64_t b, int64_t h, int64_t q) {
    constexpr float log2e = 1.44269504f, infinity = std::numeric_limits<float>::infinity();
    float maximum = -infinity, sum = 0;
    std::vector<float> row(static_cast<size_t>(p.dimV));
    for (int64_t first = 0; first < p.seqKV; first += kTile) {
      float top = maximum;
      const int64_t end = std::min(first + kTile, p.seqKV);
      for (int64_t k = first; k < end; ++k)
        if (seen(b, h, q, k)) top = std::max(top, score(b, h, q, k));
      if (std::isinf(top)) continue;
      const float factor = std::exp2((maximum - top) * log2e);
      sum *= factor;
      if (bug != Bug::FirstTileNotRescaled || first != kTile)
        for (float &x : row)
          x *= factor;
      for (int64_t k = first; k < end; ++k) {
        if (!seen(b, h, q, k)) continue;
        const float weight = std::exp2(score(b, h, q, k) * log2e - top * log2e);
        sum += weight;
        for (int64_t d = 0; d < p.dimV; ++d)
          row[static_cast<size_t>(d)] += store(weight) * at(c.data.v, b, headKV(h), k, d);
      }
      maximum = top;
    }
    lse.set(b, h, q, 0, sum != 0 ? maximum + std::log(sum) : -infinity);
    for (int64_t d = 0; d < p.dimV; ++d)
      o.set(b, h, q, d, sum != 0 ? row[static_cast<size_t>(d)] / sum : 0);
  }

  struct Pair {
    float p, dS;
  };
  Pair recompute(int64_t b, int64_t h, int64_t q, int64_t k) const {
    const float weight = std::exp(score(b, h, q, k) - at(lse, b, h, q, 0));
    const float delta = bug == Bug::DeltaForgotten ? 0 : dot(c.data.dO, h, q, o, h, q, b);
    const auto change =
        static_cast<float>(bug == Bug::SlopeForgotten ? 1 : slope(product(b, h, q, k), point(b, h, q, k)));
    const float dS = weight * (dot(c.data.dO, h, q, c.data.v, headKV(h), k, b) - delta) * change;
    return {store(weight), store(dS)};
  }

  void backwardRow(int64_t b, int64_t h, int64_t q) {
    std::vector<float> row(static_cast<size_t>(p.dimQK));
    for (int64_t k = 0; k < p.seqKV; ++k) {
      if (!seen(b, h, q, k)) continue;
      const Pair pair = recompute(b, h, q, k);
      for (int64_t d = 0; d < p.dimQK; ++d)
        row[static_cast<size_t>(d)] += pair.dS * at(c.data.k, b, headKV(h), k, d);
    }
    for (int64_t d = 0; d < p.dimQK; ++d)
      dQ.set(b, h, q, d, (bug == Bug::ScaleForgotten ? 1 : scale) * row[static_cast<size_t>(d)]);
  }

  void backwardKey(int64_t b, int64_t hk, int64_t k) {
    std::vector<float> keyRow(static_cast<size_t>(p.dimQK)), valueRow(static_cast<size_t>(p.dimV));
    for (int64_t h = 0; h < p.headsQ; ++h)
      for (int64_t q = 0; q < p.seqQ; ++q) {
        if (headKV(h) != hk || !seen(b, h, q, k)) continue;
        const Pair pair = recompute(b, h, q, k);
        for (int64_t d = 0; d < p.dimQK; ++d)
          keyRow[static_cast<size_t>(d)] += pair.dS * at(c.data.q, b, h, q, d);
        for (int64_t d = 0; d < p.dimV; ++d)
          valueRow[static_cast<size_t>(d)] += pair.p * at(c.data.dO, b, h, q, d);
      }
    for (int64_t d = 0; d < p.dimQK; ++d)
      dK.set(b, hk, k, d, scale * keyRow[static_cast<size_t>(d)]);
    for (int64_t d = 0; d < p.dimV; ++d)
      dV.set(b, hk, k, d, valueRow[static_cast<size_t>(d)]);
  }

  const AttentionCase &c;
  const Problem &p;
  std::function<double(double, const expr::Point &)> slope;
  Bug bug;
  float scale;
};

} // namespace tilewright::test
