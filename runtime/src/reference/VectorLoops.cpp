#include "VectorLoops.h"

namespace tilewright {
namespace {

template <class Real>
[[gnu::always_inline]] inline void dotsLoop(const Real *x, const Real *packed, int64_t dim, Real *out) {
  Real sums[kLanes] = {};
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t l = 0; l < kLanes; ++l)
      sums[l] += x[d] * packed[d * kLanes + l];
  for (int64_t l = 0; l < kLanes; ++l)
    out[l] = sums[l];
}

template <class Real> [[gnu::always_inline]] inline void addScaledLoop(Real a, const Real *x, int64_t dim, Real *y) {
  for (int64_t d = 0; d < dim; ++d)
    y[d] += a * x[d];
}

template <class Real> void dotsBase(const Real *x, const Real *packed, int64_t dim, Real *out) {
  dotsLoop(x, packed, dim, out);
}
template <class Real> void addScaledBase(Real a, const Real *x, int64_t dim, Real *y) { addScaledLoop(a, x, dim, y); }

#if defined(__x86_64__)
// GCC keeps to 256-bit vectors unless told otherwise; clang has no such attribute.
#if defined(__clang__)
#define TILEWRIGHT_AVX512 "avx512f"
#else
#define TILEWRIGHT_AVX512 "avx512f,prefer-vector-width=512"
#endif
template <class Real>
[[gnu::target("avx2,fma")]] void dotsAvx2(const Real *x, const Real *packed, int64_t dim, Real *out) {
  dotsLoop(x, packed, dim, out);
}
template <class Real> [[gnu::target("avx2,fma")]] void addScaledAvx2(Real a, const Real *x, int64_t dim, Real *y) {
  addScaledLoop(a, x, dim, y);
}
template <class Real>
[[gnu::target(TILEWRIGHT_AVX512)]] void dotsAvx512(const Real *x, const Real *packed, int64_t dim, Real *out) {
  dotsLoop(x, packed, dim, out);
}
template <class Real>
[[gnu::target(TILEWRIGHT_AVX512)]] void addScaledAvx512(Real a, const Real *x, int64_t dim, Real *y) {
  addScaledLoop(a, x, dim, y);
}
#endif

template <class Real> VectorLoops<Real> choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {dotsAvx512<Real>, addScaledAvx512<Real>};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {dotsAvx2<Real>, addScaledAvx2<Real>};
#endif
  return {dotsBase<Real>, addScaledBase<Real>};
}

} // namespace

template <class Real> const VectorLoops<Real> &VectorLoops<Real>::get() {
  static const VectorLoops<Real> loops = choose<Real>();
  return loops;
}

template struct VectorLoops<float>;
template struct VectorLoops<double>;

} // namespace tilewright
