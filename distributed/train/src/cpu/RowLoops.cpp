// Compiled once a level, with TILEWRIGHT_LEVEL as its namespace and that level's instructions. Only plain functions in
// here: an inline function shared with other files could bring this file's instructions to machines without them.
#include "RowLoops.h"

namespace tilewright::train::TILEWRIGHT_LEVEL {
namespace {

/// e^x by 2^n e^r, |r| <= ln 2 / 2, with the Taylor polynomial of degree 7: relative error below 2e-7. 0 below -87.
inline float exponential(float x) {
  const float clamped = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
  const float n = __builtin_floorf(clamped * 1.44269504f + 0.5f);
  // ln 2 in two parts, so that n * ln 2 is exact enough.
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof(power));
  const float result = p * power;
  // The comparison is false for NaN, which has to come out as it went in.
  return x < -87.0f ? 0.0f : x == x ? result : x;
}

float norm(const float *x, const float *addend, float *sum, const float *weight, float epsilon, float *y,
           int64_t count) {
  if (addend) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      sum[i] = x[i] + addend[i];
    x = sum;
  }
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < count; ++i)
    squares += x[i] * x[i];
  const float inverse = 1 / __builtin_sqrtf(squares / static_cast<float>(count) + epsilon);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    y[i] = x[i] * inverse * weight[i];
  return inverse;
}

void normBackward(const float *dY, const float *x, const float *weight, float inverse, float *dX, bool add,
                  float *weightSums, int64_t count) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < count; ++i)
    dot += dY[i] * weight[i] * x[i];
  // y = x w / rms, so dx = (dy w - x (dy w . x) / (n rms^2)) / rms.
  const float along = dot * inverse * inverse / static_cast<float>(count), keep = add ? 1.0f : 0.0f;
  if (!add)
    for (int64_t i = 0; i < count; ++i)
      dX[i] = 0;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    dX[i] = keep * dX[i] + inverse * (dY[i] * weight[i] - x[i] * along);
    weightSums[i] += dY[i] * x[i] * inverse;
  }
}

void rotate(float *x, const float *cosines, const float *sines, float sign, int64_t pairs) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], c = cosines[i], s = sign * sines[i];
    x[2 * i] = a * c - b * s;
    x[2 * i + 1] = a * s + b * c;
  }
}

void swiglu(const float *gate, const float *up, float *y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    y[i] = gate[i] / (1 + exponential(-gate[i])) * up[i];
}

void swigluBackward(const float *gate, const float *up, const float *dY, float *dGate, float *dUp, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = gate[i], d = dY[i], u = up[i], sigmoid = 1 / (1 + exponential(-g));
    dUp[i] = d * g * sigmoid;
    dGate[i] = d * u * sigmoid * (1 + g * (1 - sigmoid));
  }
}

double crossEntropy(float *x, int64_t target, bool gradient, int64_t count) {
  float largest = x[0];
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i)
    largest = x[i] > largest ? x[i] : largest;
  const float wanted = x[target];
  float sum = 0;
  if (gradient) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) {
      x[i] = exponential(x[i] - largest);
      sum += x[i];
    }
    const float inverse = 1 / sum;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      x[i] *= inverse;
    x[target] -= 1;
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i)
      sum += exponential(x[i] - largest);
  }
  return __builtin_log(static_cast<double>(sum)) + (static_cast<double>(largest) - static_cast<double>(wanted));
}

void add(const float *x, float *y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    y[i] += x[i];
}

} // namespace

extern const RowLoops kLoops = {norm, normBackward, rotate, swiglu, swigluBackward, crossEntropy, add};

} // namespace tilewright::train::TILEWRIGHT_LEVEL
