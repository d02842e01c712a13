// The trainer's model in double with straightforward loops, one sequence at a time: what gradients and losses are
// compared with. Parameters in the order of ModelConfig::parameters().
#pragma once

#include "tilewright/train/Transformer.h"
#include <cmath>
#include <vector>

namespace reference {

using namespace tilewright::train;
using Rows = std::vector<std::vector<double>>;
using Parameters = std::vector<std::vector<double>>;

/// y = x W^T with W (out, in).
inline Rows linear(const Rows &x, const std::vector<double> &w, size_t out) {
  const size_t in = x[0].size();
  Rows y(x.size(), std::vector<double>(out));
  for (size_t r = 0; r < x.size(); ++r)
    for (size_t o = 0; o < out; ++o)
      for (size_t i = 0; i < in; ++i)
        y[r][o] += x[r][i] * w[o * in + i];
  return y;
}

inline Rows rmsNorm(const Rows &x, const std::vector<double> &w, double epsilon) {
  Rows y = x;
  for (size_t r = 0; r < x.size(); ++r) {
    double squares = 0;
    for (double value : x[r])
      squares += value * value;
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(x[r].size()) + epsilon);
    for (size_t i = 0; i < w.size(); ++i)
      y[r][i] = x[r][i] * inverse * w[i];
  }
  return y;
}

inline void rotate(Rows &x, const ModelConfig &c) {
  const size_t dim = static_cast<size_t>(c.headDim());
  for (size_t p = 0; p < x.size(); ++p)
    for (size_t i = 0; i < x[p].size(); i += 2) {
      const double angle =
          static_cast<double>(p) * std::pow(c.ropeBase, -static_cast<double>(i % dim) / static_cast<double>(dim));
      const double a = x[p][i], b = x[p][i + 1];
      x[p][i] = a * std::cos(angle) - b * std::sin(angle);
      x[p][i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
}

inline Rows attention(const Rows &q, const Rows &k, const Rows &v, const ModelConfig &c) {
  const size_t dim = static_cast<size_t>(c.headDim()), n = q.size();
  Rows o(n, std::vector<double>(q[0].size()));
  for (size_t begin = 0; begin < q[0].size(); begin += dim)
    for (size_t i = 0; i < n; ++i) {
      std::vector<double> p(i + 1);
      double sum = 0;
      for (size_t j = 0; j <= i; ++j) {
        double score = 0;
        for (size_t d = begin; d < begin + dim; ++d)
          score += q[i][d] * k[j][d];
        sum += p[j] = std::exp(score / std::sqrt(static_cast<double>(dim)));
      }
      for (size_t j = 0; j <= i; ++j)
        for (size_t d = begin; d < begin + dim; ++d)
          o[i][d] += p[j] / sum * v[j][d];
    }
  return o;
}

inline void add(Rows &x, const Rows &y) {
  for (size_t r = 0; r < x.size(); ++r)
    for (size_t i = 0; i < x[r].size(); ++i)
      x[r][i] += y[r][i];
}

/// Logits of one sequence, a row a token.
inline Rows logits(const ModelConfig &c, const Parameters &p, std::span<const int32_t> tokens) {
  const ParameterIndex index{c.layers};
  const size_t width = static_cast<size_t>(c.width), hidden = static_cast<size_t>(c.hidden);
  Rows x;
  for (int32_t token : tokens)
    x.emplace_back(p[0].begin() + token * c.width, p[0].begin() + (token + 1) * c.width);
  for (int64_t l = 0; l < c.layers; ++l) {
    auto w = [&](ParameterIndex::Of which) -> const std::vector<double> & {
      return p[static_cast<size_t>(index.layer(l, which))];
    };
    const Rows y = rmsNorm(x, w(ParameterIndex::AttentionNorm), c.normEpsilon);
    Rows q = linear(y, w(ParameterIndex::Q), width), k = linear(y, w(ParameterIndex::K), width);
    rotate(q, c);
    rotate(k, c);
    add(x, linear(attention(q, k, linear(y, w(ParameterIndex::V), width), c), w(ParameterIndex::O), width));
    const Rows z = rmsNorm(x, w(ParameterIndex::MlpNorm), c.normEpsilon);
    Rows gate = linear(z, w(ParameterIndex::Gate), hidden);
    const Rows up = linear(z, w(ParameterIndex::Up), hidden);
    for (size_t r = 0; r < gate.size(); ++r)
      for (size_t i = 0; i < hidden; ++i)
        gate[r][i] *= up[r][i] / (1 + std::exp(-gate[r][i]));
    add(x, linear(gate, w(ParameterIndex::Down), width));
  }
  return linear(rmsNorm(x, p[static_cast<size_t>(index.norm())], c.normEpsilon), p[static_cast<size_t>(index.head())],
                static_cast<size_t>(c.vocabulary));
}

/// Sum of cross-entropies of the targets that count.
inline double loss(const ModelConfig &c, const Parameters &p, const Batch &batch) {
  double total = 0;
  const size_t length = static_cast<size_t>(batch.length);
  for (size_t s = 0; s < static_cast<size_t>(batch.sequences); ++s) {
    const Rows rows = logits(c, p, batch.tokens.subspan(s * length, length));
    for (size_t r = 0; r < length; ++r) {
      const int32_t target = batch.targets[s * length + r];
      if (target < 0) continue;
      double sum = 0;
      for (double value : rows[r])
        sum += std::exp(value);
      total += std::log(sum) - rows[r][static_cast<size_t>(target)];
    }
  }
  return total;
}

} // namespace reference
