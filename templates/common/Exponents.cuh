// From scores to the exponents of softmax, in log2 units, and the two forms that scores come in. Nothing here knows of
// fragments or of a GPU, so that it can be tested where there is none.
//
// The usual exponent is one multiply-add, s * c - round(m * c). The maximum m itself then gets, instead of 0, what
// rounding m * c left out: half a unit of its last place, which is nothing for plain scores, 512 at 1e10 and infinite
// at 1e38. Such maxima are *far*: they are subtracted before the multiplication, which is exact for scores near them.
#pragma once
#include "common/Types.cuh"

namespace tw {

/// |m * c| from which a maximum is far: rounding moves exponents by 2^-13 there, less than 16-bit types show, and fp32
/// scores of that size are rounded by as much themselves.
constexpr float kFarExponent = 4096.f;

/// |LSE| beyond which ln of any sum is less than half a unit of its last place: a *lonely* LSE holds the maximum alone.
constexpr float kLonelyLse = 4294967296.f; // 2^32

/// The score is scale * q.k and stays a raw product until the exponent is taken. The row maximum m is kept in raw
/// units, which needs scale > 0: see makeRawScores.
struct RawScores {
  static constexpr bool canBeFar = true;
  float scale, factor; ///< factor = scale * log2(e)
  __device__ __forceinline__ float reference(float m) const { return __fmul_rn(m, factor); }
  __device__ __forceinline__ float exponent(float s, float reference) const { return fmaf(s, factor, -reference); }
  /// Exponent of `m` relative to `other`, whatever their size. NaN if both are the same infinity.
  __device__ __forceinline__ float growth(float m, float other) const { return (m - other) * factor; }
  /// Not true of -inf, a row that has seen nothing.
  __device__ __forceinline__ bool isFar(float m) const {
    return fabsf(m * factor) > kFarExponent && fabsf(m) < infinity();
  }
  /// Neither far nor infinite nor NaN.
  __device__ __forceinline__ bool isPlain(float m) const { return fabsf(m * factor) <= kFarExponent; }
  __device__ __forceinline__ float naturalMax(float m) const { return __fmul_rn(m, scale); }
  /// lse and shift of a row whose maximum is plain.
  __device__ __forceinline__ float plainLse(float m, float lnSum) const { return naturalMax(m) + lnSum; }
  __device__ __forceinline__ float plainShift(float m, float lse) const {
    return fmaf(fmaf(m, scale, -lse), kLog2E, -exponent(m, reference(m)));
  }
  /// LSE of a row with maximum `m`. A lonely one is rounded down, so that no product of the maximum's size falls below.
  __device__ __forceinline__ float lse(float m, float lnSum) const {
    return fabsf(naturalMax(m)) > kLonelyLse ? __fmul_rd(m, scale) : naturalMax(m) + lnSum;
  }
  /// What exponents relative to `lse` lack against those that forward took relative to the maximum `m`, in log2 units;
  /// nothing to a lonely one. With log2 of the sum it makes LSE's rest: see LogProbability.
  __device__ __forceinline__ float shift(float m, float lse, bool far = false) const {
    if (fabsf(lse) > kLonelyLse) return 0.f;
    return far ? fmaf(m, scale, -lse) * kLog2E : plainShift(m, lse);
  }
};

/// A score function has run and s is in natural units. Subtracting before the multiplication keeps scores near the end
/// of fp32's range finite.
struct NaturalScores {
  static constexpr bool canBeFar = false;
  __device__ __forceinline__ bool isFar(float) const { return false; }
  __device__ __forceinline__ bool isPlain(float m) const { return m > minusInfinity(); }
  __device__ __forceinline__ float plainLse(float m, float lnSum) const { return m + lnSum; }
  __device__ __forceinline__ float plainShift(float m, float lse) const { return (m - lse) * kLog2E; }
  __device__ __forceinline__ float reference(float m) const { return m; }
  __device__ __forceinline__ float exponent(float s, float reference) const { return (s - reference) * kLog2E; }
  __device__ __forceinline__ float growth(float m, float other) const { return (m - other) * kLog2E; }
  __device__ __forceinline__ float lse(float m, float lnSum) const { return m + lnSum; }
  __device__ __forceinline__ float shift(float m, float lse, bool = false) const { return (m - lse) * kLog2E; }
  /// A row whose every score is -inf has LSE -inf; +inf makes its probabilities exp(-inf) = 0.
  __device__ __forceinline__ float negatedLse(float lse) const { return lse == minusInfinity() ? lse : -lse; }
  __device__ __forceinline__ float exponentOfLse(float s, float negated) const { return (s + negated) * kLog2E; }
};

/// RawScores takes maxima before scaling, so a scale that is not positive moves into the products first: returns the
/// factor for them (1 in the usual case, and then nothing need be multiplied).
__device__ __forceinline__ float signOfScale(float scale) { return scale > 0.f ? 1.f : scale < 0.f ? -1.f : 0.f; }
__device__ __forceinline__ RawScores makeRawScores(float scale) {
  float size = scale == 0.f ? 1.f : fabsf(scale);
  return {size, size * kLog2E};
}
/// The backward pass on raw products: exponents relative to LSE instead of a maximum, so any scale serves as it is.
struct RawGradients {
  float factor;         ///< scale * log2(e), or log2(e) once `settled`
  bool settled = false; ///< The scores of the tile are ln of probabilities by now: LSE is out of them.
  __device__ __forceinline__ void settle() {
    factor = kLog2E;
    settled = true;
  }
  /// -LSE in the form that exponentOfLse takes. Finite, or `settled`: -inf, of a row that sees nothing, would meet the
  /// infinity of hidden().
  __device__ __forceinline__ float negatedLse(float lse) const { return settled ? 0.f : -lse * kLog2E; }
  __device__ __forceinline__ float exponentOfLse(float s, float negated) const { return fmaf(s, factor, negated); }
  /// The score whose probability is 0 whatever LSE is.
  __device__ __forceinline__ float hidden() const { return factor < 0.f ? infinity() : minusInfinity(); }
};
/// For scale 0 the smallest factor stands in, which leaves finite scores without effect and still turns hidden() into
/// probability 0.
__device__ __forceinline__ RawGradients makeRawGradients(float scale) {
  return {scale == 0.f ? __int_as_float(1) : scale * kLog2E};
}

/// ln of a row's probabilities from raw products and all that is known of LSE, exact however large scores are: score -
/// LSE - rest. None exceeds 0: products made anew may differ from forward's by many units of such a size. Above a
/// lonely LSE lie the products of the maximum's size; the rest then is ln of how many they are.
struct LogProbability {
  float negated, rest, highest;
  __device__ __forceinline__ LogProbability(float lse, float ofLse) : negated(-lse), rest(ofLse), highest(0.f) {
    if (fabsf(lse) > kLonelyLse) rest = 0.f, highest = -ofLse;
  }
  __device__ __forceinline__ float of(float product, float scale) const {
    float x = fmaf(product, scale, negated) - rest;
    return x > highest ? highest : x; // NaN stays
  }
};

} // namespace tw
