// The layers' arithmetic on single rows, compiled for several x86-64 levels; the best one is chosen at run time.
#pragma once

#include <cstdint>

namespace tilewright::train {

struct RowLoops {
  /// The row's 1 / rms. sum = x + addend if addend is not null, else sum may be x itself.
  float (*norm)(const float *x, const float *addend, float *sum, const float *weight, float epsilon, float *y,
                int64_t count);
  /// dX = or += the gradient; weightSums += dY * x * inverse.
  void (*normBackward)(const float *dY, const float *x, const float *weight, float inverse, float *dX, bool add,
                       float *weightSums, int64_t count);
  /// Pairs (2i, 2i + 1) by angles of these cosines and sines.
  void (*rotate)(float *x, const float *cosines, const float *sines, float sign, int64_t pairs);
  void (*swiglu)(const float *gate, const float *up, float *y, int64_t count);
  void (*swigluBackward)(const float *gate, const float *up, const float *dY, float *dGate, float *dUp, int64_t count);
  /// logsumexp(x) - x[target]; with `gradient` x becomes softmax(x) - one-hot.
  double (*crossEntropy)(float *x, int64_t target, bool gradient, int64_t count);
  void (*add)(const float *x, float *y, int64_t count); ///< y += x

  static const RowLoops &get();
};

namespace level2 {
extern const RowLoops kLoops;
}
namespace level3 {
extern const RowLoops kLoops;
}
namespace level4 {
extern const RowLoops kLoops;
}

} // namespace tilewright::train
