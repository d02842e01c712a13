// Shapes of attention's tensors, always stated as (batch, heads, rows, dim) whatever their order in memory.
#pragma once

#include "tilewright/plan/Problem.h"
#include <cstdint>
#include <string>

namespace tilewright {

struct TensorShape {
  int64_t batch = 0, heads = 0, rows = 0, dim = 0;
  bool operator==(const TensorShape &) const = default;

  /// Number of elements, or an error when a dimension is negative or the count leaves int64.
  Expected<int64_t> elements() const;
  /// As the dimensions lie in memory: "(batch 2, seq 128, heads 4, dim 64)" for bshd.
  std::string text(Layout layout) const;
};

inline TensorShape shapeOfQ(const Problem &p) { return {p.batch, p.headsQ, p.seqQ, p.dimQK}; }   ///< also dQ
inline TensorShape shapeOfK(const Problem &p) { return {p.batch, p.headsKV, p.seqKV, p.dimQK}; } ///< also dK
inline TensorShape shapeOfV(const Problem &p) { return {p.batch, p.headsKV, p.seqKV, p.dimV}; }  ///< also dV
inline TensorShape shapeOfO(const Problem &p) { return {p.batch, p.headsQ, p.seqQ, p.dimV}; }    ///< also dO
/// LSE and delta: contiguous (batch, head, row), that is Layout::BHSD with a dim of 1, whatever the problem's layout.
inline TensorShape shapeOfLse(const Problem &p) { return {p.batch, p.headsQ, p.seqQ, 1}; }

} // namespace tilewright
