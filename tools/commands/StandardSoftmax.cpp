// The softmax of standard attention. In a file of its own because it is compiled with -ffast-math, which the vectoriser
// needs for the two reductions, and for three instruction sets.
#include "StandardAttention.h"

#include <bit>

namespace tilewright::tool {

namespace {

/// e^x for x <= 0, to about 2e-7.
inline float expNonPositive(float x) {
  x = x < -87.0f ? -87.0f : x;
  float t = x * 1.44269504f, n = __builtin_floorf(t + 0.5f), r = t - n;
  float p = 0.00132647296f;
  p = p * r + 0.00967151299f;
  p = p * r + 0.0555073358f;
  p = p * r + 0.240222424f;
  p = p * r + 0.693147004f;
  p = p * r + 1.0f;
  return p * std::bit_cast<float>((static_cast<int>(n) + 127) << 23);
}

} // namespace

__attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default"))) void
softmaxRow(float *row, int64_t visible, int64_t cols) {
  float largest = -3.4e38f;
  for (int64_t i = 0; i < visible; ++i)
    largest = row[i] > largest ? row[i] : largest;
  float sum = 0;
  for (int64_t i = 0; i < visible; ++i) {
    row[i] = expNonPositive(row[i] - largest);
    sum += row[i];
  }
  float factor = 1 / sum;
  for (int64_t i = 0; i < visible; ++i)
    row[i] *= factor;
  for (int64_t i = visible; i < cols; ++i)
    row[i] = 0;
}

} // namespace tilewright::tool
