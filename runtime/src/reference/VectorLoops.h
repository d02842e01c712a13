// The two inner loops of the references, compiled for the vector width of the machine they run on. Each sum runs over
// its index in order; vectors go across independent sums, so the results are those of the plain loops (up to the
// rounding of fused multiply-adds).
#pragma once

#include <cstdint>

namespace tilewright {

/// Keys that dot products are computed for at a time. Four vectors of 8 doubles hide the adder's latency.
inline constexpr int64_t kLanes = 32;

template <class Real> struct VectorLoops {
  /// out[l] = sum over d of x[d] * packed[d * kLanes + l], for all kLanes l.
  void (*dots)(const Real *x, const Real *packed, int64_t dim, Real *out);
  /// y[d] += a * x[d]
  void (*addScaled)(Real a, const Real *x, int64_t dim, Real *y);

  /// The best this machine can run.
  static const VectorLoops &get();
};

} // namespace tilewright
