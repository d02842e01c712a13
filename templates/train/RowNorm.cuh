// RMSNorm of rows with the residual addition before it, and its gradients: Zhang and Sennrich, arXiv 1910.07467.
//   s = x + addend,  y = s / rms(s) * w,  rms(s) = sqrt(mean(s^2) + epsilon)
//   ds = (dy w - s (dy w . s) / (n rms^2)) / rms,  dw = sum over rows of dy s / rms
#pragma once
#include "train/Rows.cuh"

namespace tw {

struct RowNormArgs {
  RowsRef x, addend, sum, y; ///< addend.data null: the sum is x, and not written.
  const void *weight;
  float *inverse; ///< 1 / rms by row.
  Int64 rows;
  int columns;
  float epsilon;
};

template <class Element, class Weight> __device__ void rowNorm(const RowNormArgs &args) {
  const Int64 r = rowOfWarp();
  if (r >= args.rows) return;
  const Element *x = args.x.row<Element>(r), *addend = args.addend.row<Element>(r);
  Element *sum = args.sum.row<Element>(r), *y = args.y.row<Element>(r);
  const Weight *weight = static_cast<const Weight *>(args.weight);
  const bool adds = args.addend.data != nullptr;
  float squares = 0;
  for (int c = laneIndex() * kUnit; c < args.columns; c += 32 * kUnit) {
    Unit u = loadUnit(x + c);
    if (adds) {
      const Unit a = loadUnit(addend + c);
#pragma unroll
      for (int i = 0; i < kUnit; ++i)
        u.x[i] = stored<Element>(u.x[i] + a.x[i]);
      storeUnit(sum + c, u);
    }
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      squares += u.x[i] * u.x[i];
  }
  const float inverse = 1 / sqrtf(warpSum(squares) / static_cast<float>(args.columns) + args.epsilon);
  if (laneIndex() == 0) args.inverse[r] = inverse;
  const Element *from = adds ? sum : x; // each lane reads what it wrote itself
  for (int c = laneIndex() * kUnit; c < args.columns; c += 32 * kUnit) {
    Unit u = loadUnit(from + c);
    const Unit w = loadUnit(weight + c);
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      u.x[i] *= inverse * w.x[i];
    storeUnit(y + c, u);
  }
}

struct RowNormGradientArgs {
  RowsRef dY, x, dX; ///< x is rowNorm's sum.
  const void *weight;
  const float *inverse;
  Int64 rows;
  int columns;
  int add; ///< To what dX holds.
};

template <class Element, class Weight> __device__ void rowNormGradient(const RowNormGradientArgs &args) {
  const Int64 r = rowOfWarp();
  if (r >= args.rows) return;
  const Element *dY = args.dY.row<Element>(r), *x = args.x.row<Element>(r);
  Element *dX = args.dX.row<Element>(r);
  const Weight *weight = static_cast<const Weight *>(args.weight);
  float dot = 0;
  for (int c = laneIndex() * kUnit; c < args.columns; c += 32 * kUnit) {
    const Unit d = loadUnit(dY + c), v = loadUnit(x + c), w = loadUnit(weight + c);
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      dot += d.x[i] * w.x[i] * v.x[i];
  }
  const float inverse = args.inverse[r];
  const float along = warpSum(dot) * inverse * inverse / static_cast<float>(args.columns);
  for (int c = laneIndex() * kUnit; c < args.columns; c += 32 * kUnit) {
    const Unit d = loadUnit(dY + c), v = loadUnit(x + c), w = loadUnit(weight + c);
    Unit before = {};
    if (args.add) before = loadUnit(dX + c);
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      before.x[i] += inverse * (d.x[i] * w.x[i] - v.x[i] * along);
    storeUnit(dX + c, before);
  }
}

constexpr int kTileColumns = 32 * kUnit;

struct NormWeightArgs {
  RowsRef dY, x;
  const float *inverse;
  float *partial; ///< (chunks, columns)
  Int64 rows;
  int columns;
  int chunkRows;
};

/// Block (chunk, tile of columns): partial sums of dw over the chunk's rows.
template <class Element> __device__ void normWeight(const NormWeightArgs &args) {
  __shared__ float sums[kWarps][kTileColumns];
  const int tiles = (args.columns + kTileColumns - 1) / kTileColumns;
  const int chunk = blockIdx.x / tiles, first = blockIdx.x % tiles * kTileColumns, c = first + laneIndex() * kUnit;
  const Int64 begin = static_cast<Int64>(chunk) * args.chunkRows, last = begin + args.chunkRows,
              end = last < args.rows ? last : args.rows;
  Unit total = {};
  if (c < args.columns)
    for (Int64 r = begin + warpOfBlock(); r < end; r += kWarps) {
      const Unit d = loadUnit(args.dY.row<Element>(r) + c), v = loadUnit(args.x.row<Element>(r) + c);
      const float inverse = args.inverse[r];
#pragma unroll
      for (int i = 0; i < kUnit; ++i)
        total.x[i] += d.x[i] * v.x[i] * inverse;
    }
#pragma unroll
  for (int i = 0; i < kUnit; ++i)
    sums[warpOfBlock()][laneIndex() * kUnit + i] = total.x[i];
  __syncthreads();
  const int column = first + threadIdx.x;
  if (column >= args.columns) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp)
    sum += sums[warp][threadIdx.x];
  args.partial[static_cast<Int64>(chunk) * args.columns + column] = sum;
}

struct NormWeightSumArgs {
  const float *partial;
  void *dWeight;
  int columns;
  int chunks;
  int add;
};

template <class Gradient> __device__ void normWeightSum(const NormWeightSumArgs &args) {
  const int c = blockIdx.x * kLayerThreads + threadIdx.x;
  if (c >= args.columns) return;
  Gradient *to = static_cast<Gradient *>(args.dWeight) + c;
  float sum = 0;
#pragma unroll 8
  for (int chunk = 0; chunk < args.chunks; ++chunk)
    sum += args.partial[static_cast<Int64>(chunk) * args.columns + c];
  storeElement(to, args.add ? sum + loadElement(to) : sum);
}

} // namespace tw
