// Online softmax over the accumulators of wgmma, which lie in registers as mma's do: a warp holds 16 rows.
//
// The same state as sm80/Softmax.cuh, cut into pieces that a schedule can place under products in flight, and spelt so
// that each score costs as few instructions as it can: what limits narrow heads is not the special function unit but
// issue slots.
#pragma once
#include "sm80/Softmax.cuh"

namespace tw {

/// One value for each of the two rows a lane holds a part of.
struct RowPair {
  float x[2];
};

/// State of the two rows a lane holds a part of.
struct OnlineRows {
  float max[2];       ///< Running maximum, in the score's own units.
  float reference[2]; ///< What exponents are taken relative to: the maximum's exponent; 0 for a row without keys, and
                      ///< for a far maximum, which is subtracted from the scores.
  float sum[2];       ///< This lane's share.
  float factor[2];    ///< What the last change of the maximum multiplies the output by.

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max[half] = minusInfinity();
      reference[half] = sum[half] = factor[half] = 0.f;
    }
  }
  __device__ __forceinline__ void add(const RowPair &sums) {
    sum[0] += sums.x[0];
    sum[1] += sums.x[1];
  }
  /// What the next tile's sums must stay below (see outgrew): `bound`, or 0, which no sum does, for rows that are not
  /// plain: without a maximum to go by, since they have seen no key yet, or with a far one.
  template <class Scores> __device__ __forceinline__ float sumBound(const Scores &scores, float bound) const {
    return scores.isPlain(max[0]) && scores.isPlain(max[1]) ? bound : 0.f;
  }
};

/// The part of updateMaxima for rows whose new maximum is not plain: far ones are subtracted from `s`.
template <int N, class Scores>
__device__ __forceinline__ void settleMaxima(Accumulator<16, N> &s, OnlineRows &rows, const float (&newMax)[2],
                                             const Scores &scores) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float m = newMax[half];
    if (!(m == minusInfinity() || scores.isFar(m))) continue;
    rows.reference[half] = 0.f;
    rows.factor[half] =
        exp2Approx(scores.isFar(m) ? scores.growth(rows.max[half], m) : scores.exponent(rows.max[half], 0.f));
    if (Scores::canBeFar && scores.isFar(m)) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          s.x[0][j][e] -= m;
    }
  }
}

/// Brings the rows' maxima up to date with a tile of scores. Returns whether they moved (for the whole warp alike): the
/// output must then be multiplied by rows.factor before anything is added to it.
///
/// Maxima are taken over the bits as signed integers, three at a time (one VIMNMX3 for two scores): right as long as
/// one of a row's values is not negative. A row whose integer maximum is negative sends the warp through maxima of
/// floats. The maximum moves only when it grew by more than `thresholdLog2` (log2 units): exact after normalisation,
/// and probabilities stay below 2^threshold. Far maxima (common/Exponents.cuh) are subtracted from `s` here: relative
/// to their reference, 0, no tile's maximum is near, so they always come this way.
template <int N, class Scores>
__device__ __forceinline__ bool updateMaxima(Accumulator<16, N> &s, OnlineRows &rows, const Scores &scores,
                                             float thresholdLog2) {
  int bits[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bits[half] = __float_as_int(rows.max[half]);
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      bits[half] = max(bits[half], max(__float_as_int(s.x[0][j][2 * half]), __float_as_int(s.x[0][j][2 * half + 1])));
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bits[half] = max(bits[half], __shfl_xor_sync(0xffffffffu, bits[half], 1));
    bits[half] = max(bits[half], __shfl_xor_sync(0xffffffffu, bits[half], 2));
  }
  bool settled = true; // NaN and a row's first key are not
#pragma unroll
  for (int half = 0; half < 2; ++half)
    settled &= bits[half] >= 0 && rows.max[half] > minusInfinity() &&
               scores.exponent(__int_as_float(bits[half]), rows.reference[half]) <= thresholdLog2;
  if (__all_sync(0xffffffffu, settled)) return false;

  float newMax[2] = {__int_as_float(bits[0]), __int_as_float(bits[1])};
  if (__any_sync(0xffffffffu, bits[0] < 0 || bits[1] < 0)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m = rows.max[half];
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
        m = fmaxf(m, fmaxf(s.x[0][j][2 * half], s.x[0][j][2 * half + 1]));
      newMax[half] = quadMax(m);
    }
  }
  bool isPlain = true;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.reference[half] = scores.reference(newMax[half]);
    rows.factor[half] = exp2Approx(scores.exponent(rows.max[half], rows.reference[half]));
    isPlain &= scores.isPlain(newMax[half]);
  }
  if (!__all_sync(0xffffffffu, isPlain)) settleMaxima(s, rows, newMax, scores);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.sum[half] *= rows.factor[half];
    rows.max[half] = newMax[half];
  }
  return true;
}

/// s becomes exp2(exponent of s); `sums` are the sums of this lane's shares of its two rows.
template <int N, class Scores>
__device__ __forceinline__ void exponentiate(Accumulator<16, N> &s, RowPair &sums, const OnlineRows &rows,
                                             const Scores &scores) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.x[half] = 0.f;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        s.x[0][j][e] = exp2Approx(scores.exponent(s.x[0][j][e], rows.reference[half]));
        sums.x[half] += s.x[0][j][e];
      }
  }
}

/// Whether a tile whose maxima were not looked at outgrew the old ones, for the whole warp alike: some sum, and so
/// perhaps some probability, is not below `bound`. Probabilities may exceed 1 by far without losing a bit: they are
/// floating-point numbers and normalisation divides the excess out again. So a tile's maxima need not be found at all
/// unless its sums say so afterwards, which is rare, and then the tile's product is made again.
__device__ __forceinline__ bool outgrew(const RowPair &sums, float bound) {
  return __builtin_expect(!__all_sync(0xffffffffu, sums.x[0] < bound && sums.x[1] < bound), 0);
}

template <int D> __device__ __forceinline__ void scaleRows(Accumulator<16, D> &o, const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      o.x[0][j][e] *= factor[e / 2];
}

/// Normalises `o` and turns rows.max into LSE (natural log) and rows.sum into what its rounding left out, as the
/// exponents of the backward pass will see it. Rows that saw nothing: o = 0, LSE = -inf, rest = 0.
template <int D, class Scores>
__device__ __forceinline__ void finishRows(Accumulator<16, D> &o, OnlineRows &rows, const Scores &scores) {
  float inverse[2];
  bool isPlain = __all_sync(0xffffffffu, scores.isPlain(rows.max[0]) && scores.isPlain(rows.max[1]));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Approximations without a slow path: a call would make products in flight wait.
    float sum = quadSum(rows.sum[half]), m = rows.max[half], log2Sum;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse[half]) : "f"(sum));
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2Sum) : "f"(sum));
    rows.max[half] = scores.plainLse(m, log2Sum * kLn2);
    rows.sum[half] = (scores.plainShift(m, rows.max[half]) + log2Sum) * kLn2;
    if (isPlain) continue;
    rows.max[half] = sum == 0.f ? minusInfinity() : scores.lse(m, log2Sum * kLn2);
    rows.sum[half] = sum == 0.f ? 0.f : (scores.shift(m, rows.max[half], scores.isFar(m)) + log2Sum) * kLn2;
    if (sum == 0.f) inverse[half] = 0.f;
  }
  scaleRows(o, inverse);
}

/// Probabilities as the left operand of the next product: rounded, in the order in which they lie.
template <class Element, int N> struct Probabilities {
  UInt32 x[N / 4];
  __device__ __forceinline__ void round(const Accumulator<16, N> &s) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        x[2 * j + half] = packPair<Element>(s.x[0][j][2 * half], s.x[0][j][2 * half + 1]);
  }
};

} // namespace tw
