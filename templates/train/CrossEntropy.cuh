// Cross-entropy of rows of logits with its gradient in their place: loss = logsumexp(x) - x[target], dx = softmax(x) -
// one-hot(target). A block takes a row. Logits are read once for maximum and sum together, once more for the gradient.
#pragma once
#include "train/Rows.cuh"

namespace tw {

struct CrossEntropyArgs {
  RowsRef logits;
  const int *targets; ///< Below zero: the row counts nothing. Above the last column: its loss is NaN.
  float *losses;      ///< By row.
  int columns;
  int gradient;
};

/// Maximum and sum of exponentials relative to it, of what a thread has seen.
struct SoftmaxState {
  float max, sum;

  __device__ __forceinline__ void add(float x) {
    if (x > max) {
      sum *= expf(max - x);
      max = x;
    }
    sum += x == max ? 1.f : expf(x - max); // both may be -inf
  }
  /// The sum relative to the maximum of more elements.
  __device__ __forceinline__ float sumFor(float larger) const {
    return max == larger ? sum : sum * expf(max - larger);
  }
};

/// Calls at(column, value) for this thread's elements, with units where rows are whole units, and stores what it returns
/// if `writes`.
template <class Element, bool writes, class At> __device__ __forceinline__ void forEachOfRow(Element *row, int columns,
                                                                                             bool units, At at) {
  const int whole = units ? columns / kUnit * kUnit : 0;
  for (int c = threadIdx.x * kUnit; c < whole; c += kLayerThreads * kUnit) {
    Unit u = loadUnit(row + c);
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      u.x[i] = at(c + i, u.x[i]);
    if (writes) storeUnit(row + c, u);
  }
  for (int c = whole + threadIdx.x; c < columns; c += kLayerThreads) {
    const float result = at(c, loadElement(row + c));
    if (writes) storeElement(row + c, result);
  }
}

template <class Element> __device__ void crossEntropy(const CrossEntropyArgs &args) {
  __shared__ float maxima[kWarps], sums[kWarps];
  const Int64 r = blockIdx.x;
  Element *row = args.logits.row<Element>(r);
  const bool units = args.logits.stride % kUnit == 0;
  const int target = args.targets[r];
  if (target < 0) {
    if (threadIdx.x == 0) args.losses[r] = 0;
    if (args.gradient) forEachOfRow<Element, true>(row, args.columns, units, [](int, float) { return 0.f; });
    return;
  }
  const float nan = __int_as_float(0x7fffffff), wanted = target < args.columns ? loadElement(row + target) : nan;
  SoftmaxState state = {minusInfinity(), 0};
  forEachOfRow<Element, false>(row, args.columns, units, [&](int, float x) {
    state.add(x);
    return x;
  });
  // NaN is no maximum; it is in the sum, which is all that it takes.
  const float ofWarp = warpMax(state.max);
  const float sumOfWarp = warpSum(state.sumFor(ofWarp));
  if (laneIndex() == 0) {
    maxima[warpOfBlock()] = ofWarp;
    sums[warpOfBlock()] = sumOfWarp;
  }
  __syncthreads();
  float max = maxima[0], sum = 0;
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp)
    max = fmaxf(max, maxima[warp]);
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp)
    sum += SoftmaxState{maxima[warp], sums[warp]}.sumFor(max);
  if (threadIdx.x == 0) args.losses[r] = logf(sum) + (max - wanted);
  if (!args.gradient) return;
  const float inverse = 1 / sum;
  forEachOfRow<Element, true>(row, args.columns, units, [&](int c, float x) {
    const float p = expf(x - max) * inverse;
    return c == target ? p - 1 : p;
  });
}

struct LossArgs {
  const float *losses;
  double *loss;
  Int64 rows;
};

/// *loss += their sum. One block.
__device__ __forceinline__ void addLosses(const LossArgs &args) {
  __shared__ double sums[kLayerThreads];
  double sum = 0;
  for (Int64 r = threadIdx.x; r < args.rows; r += kLayerThreads)
    sum += args.losses[r];
  sums[threadIdx.x] = sum;
  for (int half = kLayerThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *args.loss += sums[0];
}

} // namespace tw
