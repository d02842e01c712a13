// The kernels of a distributed step over flat arenas: conversion, squared norms, the step's scale, AdamW on a span. All
// are memory bound: neighbouring threads take neighbouring elements, each element is touched once. Sums are taken in an
// order that sizes alone decide, so that the same data give the same bits.
#pragma once
#include "common/Elements.cuh"

namespace tw {

struct ConvertArgs {
  const void *from;
  void *to;
  Int64 count;
};

template <class From, class To> __device__ void convert(const ConvertArgs &args) {
  const Int64 stride = static_cast<Int64>(gridDim.x) * blockDim.x;
  for (Int64 i = static_cast<Int64>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += stride)
    storeElement(static_cast<To *>(args.to) + i, loadElement(static_cast<const From *>(args.from) + i));
}

struct NormArgs {
  const void *from;
  double *partial; ///< shards * kNormBlocks
  Int64 shardElements;
};

constexpr int kNormBlocks = 128, kStepThreads = 256;

/// Block b of shard s adds up the squares of its elements: partial[s * kNormBlocks + b].
template <class Element> __device__ void squaredNorm(const NormArgs &args) {
  __shared__ double sums[kStepThreads];
  const int shard = blockIdx.x / kNormBlocks, block = blockIdx.x % kNormBlocks;
  const Element *from = static_cast<const Element *>(args.from) + shard * args.shardElements;
  double sum = 0;
  for (Int64 i = static_cast<Int64>(block) * kStepThreads + threadIdx.x; i < args.shardElements;
       i += kNormBlocks * kStepThreads) {
    const double value = loadElement(from + i);
    sum += value * value;
  }
  sums[threadIdx.x] = sum;
  for (int half = kStepThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) args.partial[blockIdx.x] = sums[0];
}

struct NormSumArgs {
  const double *partial;
  double *slots; ///< worldSize
  int firstShard, shards, worldSize;
};

/// slots[r] is the sum of shard r's blocks, and 0 for shards that others have.
__device__ void sumNorms(const NormSumArgs &args) {
  for (int r = threadIdx.x; r < args.worldSize; r += blockDim.x) {
    double sum = 0;
    const int shard = r - args.firstShard;
    if (shard >= 0 && shard < args.shards)
      for (int b = 0; b < kNormBlocks; ++b)
        sum += args.partial[shard * kNormBlocks + b];
    args.slots[r] = sum;
  }
}

struct ScaleArgs {
  const double *scalars; ///< Tokens of all ranks, then the squares' sums.
  double *result;        ///< The gradients' factor (negative: leave everything as it is), and their mean's norm.
  Int64 count;
  double maxNorm;
  int keepIfNotFinite;
};

__device__ void stepScale(const ScaleArgs &args) {
  if (threadIdx.x != 0) return;
  double squares = 0;
  for (Int64 i = 1; i < args.count; ++i)
    squares += args.scalars[i];
  const double inverse = args.scalars[0] > 0 ? 1 / args.scalars[0] : 0, norm = sqrt(squares) * inverse;
  double factor = inverse;
  if (args.maxNorm > 0 && norm > args.maxNorm) factor *= args.maxNorm / norm;
  if (args.keepIfNotFinite && !(norm < __longlong_as_double(0x7ff0000000000000ll))) factor = -1;
  args.result[0] = factor;
  args.result[1] = norm;
}

struct DecayRange {
  Int64 begin, count;
  double weightDecay;
};

struct AdamWArgs {
  const void *gradient;
  const double *scale;
  void *parameter;
  float *m, *v;
  float *master; ///< Null where parameters are fp32.
  Int64 count;
  const DecayRange *ranges; ///< Ascending; elements in none are padding.
  int rangeCount;
  float beta1, beta2, step, rootCorrection, epsilon;
  double learningRate;
};

constexpr int kTileElements = 1024;

/// Loshchilov and Hutter, arXiv 1711.05101, in fp32, by the equations of StepSettings.
template <class Gradient, class Parameter> __device__ void adamW(const AdamWArgs &args) {
  __shared__ int firstRange;
  const double scale = *args.scale;
  if (scale < 0) return;
  const float factor = static_cast<float>(scale);
  const Int64 tiles = (args.count + kTileElements - 1) / kTileElements;
  for (Int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    if (threadIdx.x == 0) { // the first range that ends behind the tile's begin
      int low = 0, high = args.rangeCount;
      while (low < high) {
        const int middle = (low + high) / 2;
        if (args.ranges[middle].begin + args.ranges[middle].count > tile * kTileElements)
          high = middle;
        else
          low = middle + 1;
      }
      firstRange = low;
    }
    __syncthreads();
    int range = firstRange;
#pragma unroll
    for (int k = 0; k < kTileElements / kStepThreads; ++k) {
      const Int64 i = tile * kTileElements + k * kStepThreads + threadIdx.x;
      while (range < args.rangeCount && i >= args.ranges[range].begin + args.ranges[range].count)
        ++range;
      if (i >= args.count || range == args.rangeCount || i < args.ranges[range].begin) continue;
      const float keep = static_cast<float>(1 - args.learningRate * args.ranges[range].weightDecay);
      Parameter *parameter = static_cast<Parameter *>(args.parameter) + i;
      const float g = loadElement(static_cast<const Gradient *>(args.gradient) + i) * factor;
      const float m = args.beta1 * args.m[i] + (1 - args.beta1) * g;
      const float v = args.beta2 * args.v[i] + (1 - args.beta2) * g * g;
      const float before = args.master ? args.master[i] : loadElement(parameter);
      const float after = keep * before - args.step * m / (sqrtf(v) * args.rootCorrection + args.epsilon);
      args.m[i] = m;
      args.v[i] = v;
      if (args.master) args.master[i] = after;
      storeElement(parameter, after);
    }
    __syncthreads();
  }
}

} // namespace tw

extern "C" {
__global__ void tw_step_convert_f32_bf16(const __grid_constant__ tw::ConvertArgs args) {
  tw::convert<tw::F32, tw::BF16>(args);
}
__global__ void tw_step_convert_bf16_f32(const __grid_constant__ tw::ConvertArgs args) {
  tw::convert<tw::BF16, tw::F32>(args);
}
__global__ void __launch_bounds__(256) tw_step_norm_f32(const __grid_constant__ tw::NormArgs args) {
  tw::squaredNorm<tw::F32>(args);
}
__global__ void __launch_bounds__(256) tw_step_norm_bf16(const __grid_constant__ tw::NormArgs args) {
  tw::squaredNorm<tw::BF16>(args);
}
__global__ void tw_step_sum_norms(const __grid_constant__ tw::NormSumArgs args) { tw::sumNorms(args); }
__global__ void tw_step_scale(const __grid_constant__ tw::ScaleArgs args) { tw::stepScale(args); }
__global__ void __launch_bounds__(256) tw_step_adamw_f32_f32(const __grid_constant__ tw::AdamWArgs args) {
  tw::adamW<tw::F32, tw::F32>(args);
}
__global__ void __launch_bounds__(256) tw_step_adamw_f32_bf16(const __grid_constant__ tw::AdamWArgs args) {
  tw::adamW<tw::F32, tw::BF16>(args);
}
__global__ void __launch_bounds__(256) tw_step_adamw_bf16_f32(const __grid_constant__ tw::AdamWArgs args) {
  tw::adamW<tw::BF16, tw::F32>(args);
}
__global__ void __launch_bounds__(256) tw_step_adamw_bf16_bf16(const __grid_constant__ tw::AdamWArgs args) {
  tw::adamW<tw::BF16, tw::BF16>(args);
}
}
