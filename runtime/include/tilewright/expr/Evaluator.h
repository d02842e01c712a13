// Computes an expression at one point in double precision (integers in int64): the independent reference that
// generated code is tested against. Slow and plain on purpose.
#pragma once

#include "tilewright/expr/Expression.h"

namespace tilewright::expr {

struct Point {
  int64_t q = 0, k = 0, sq = 0, sk = 0, h = 0, b = 0;
  double s = 0;
};

/// A table's elements, row-major over its axes: name[b, k] is element b * extent + k.
struct TableData {
  const int32_t *ints = nullptr;
  const float *floats = nullptr;
  int64_t extent = 0; ///< Length of the last axis
};

/// `tables` is in the order of Problem::tables. min and max pass NaN on.
bool evaluateBool(const Expr &expr, const Point &point, const std::vector<TableData> &tables);
double evaluateNumber(const Expr &expr, const Point &point, const std::vector<TableData> &tables);

/// A value with its derivative with respect to s.
struct Dual {
  double value = 0, derivative = 0;
};
Dual evaluateWithDerivative(const Expr &expr, const Point &point, const std::vector<TableData> &tables);
/// The same with the value and the derivative of every Float node rounded to fp32, as a plain fp32 program has them.
Dual evaluateInSinglePrecision(const Expr &expr, const Point &point, const std::vector<TableData> &tables);

/// An interval known to hold an Int expression for all positions and lengths up to kMaxSequence, all heads up to
/// kMaxHeads, all batch entries and all table contents; nullopt when a value on the way may leave int64. Bool gives
/// [0, 1], Float nullopt. The compiler computes in 32 bits where the interval of every node fits. Interval arithmetic
/// (Moore 1966): sound, and exact where no variable occurs twice.
struct IntRange {
  int64_t low = 0, high = 0;
  bool operator==(const IntRange &) const = default;
};
std::optional<IntRange> rangeOf(const Expr &expr);

/// The first (innermost, leftmost) Int node whose value may leave int64; nullptr when there is none.
const Expr *overflowingNode(const Expr &expr);

} // namespace tilewright::expr
