// Rows of a table by token, and the table's gradient. That is a sum over the rows with the same token in their order,
// without atomics: a block owns some tokens and finds their rows by itself.
#pragma once
#include "train/RowNorm.cuh"

namespace tw {

struct EmbeddingArgs {
  const int *tokens;
  RowsRef table, y;
  Int64 rows;
  int columns, vocabulary;
};

/// A token outside the vocabulary gives a row of NaN.
template <class Weight, class Element> __device__ void embedding(const EmbeddingArgs &args) {
  const Int64 r = rowOfWarp();
  if (r >= args.rows) return;
  const int token = args.tokens[r];
  const bool known = token >= 0 && token < args.vocabulary;
  const float nan = __int_as_float(0x7fffffff);
  const Weight *from = args.table.row<Weight>(known ? token : 0);
  for (int c = laneIndex() * kUnit; c < args.columns; c += 32 * kUnit) {
    Unit u = {{nan, nan, nan, nan, nan, nan, nan, nan}};
    if (known) u = loadUnit(from + c);
    storeUnit(args.y.row<Element>(r) + c, u);
  }
}

struct EmbeddingGradientArgs {
  const int *tokens;
  RowsRef dY, dTable;
  Int64 rows;
  int columns, vocabulary;
  int perBlock; ///< Tokens that a block owns.
  int add;      ///< To what dTable holds; else rows of tokens that do not occur become zero.
};

constexpr int kTokensAThread = 4, kTokensARound = kTokensAThread * kLayerThreads, kListed = 4096;

/// Rows of owned tokens, in their order.
struct TokenList {
  int row[kListed], token[kListed]; ///< Tokens count from the block's first.
  int found[kWarps];
};

/// Appends those among the next kTokensARound tokens; the new length, in every thread.
__device__ __forceinline__ int appendTokens(TokenList &list, int length, const int *tokens, Int64 begin, Int64 rows,
                                            int first, int owned) {
  const Int64 from = begin + threadIdx.x * kTokensAThread;
  int token[kTokensAThread], own = 0;
#pragma unroll
  for (int i = 0; i < kTokensAThread; ++i) {
    token[i] = from + i < rows ? tokens[from + i] - first : -1;
    if (token[i] >= owned) token[i] = -1;
    own += token[i] >= 0;
  }
  int upTo = own; // of the warp's lanes up to this one
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, upTo, step);
    if (laneIndex() >= step) upTo += before;
  }
  if (laneIndex() == 31) list.found[warpOfBlock()] = upTo;
  __syncthreads();
  int place = length + upTo - own;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < warpOfBlock()) place += list.found[warp];
    length += list.found[warp];
  }
#pragma unroll
  for (int i = 0; i < kTokensAThread; ++i)
    if (token[i] >= 0) {
      list.row[place] = static_cast<int>(from + i);
      list.token[place++] = token[i];
    }
  __syncthreads();
  return length;
}

/// Block (range of tokens, tile of columns). A list that does not hold all rows of its tokens is used up in parts.
template <class Element, class Gradient> __device__ void embeddingGradient(const EmbeddingGradientArgs &args) {
  __shared__ TokenList list;
  __shared__ float sums[kWarps][kTileColumns];
  const int tiles = (args.columns + kTileColumns - 1) / kTileColumns;
  const int first = blockIdx.x / tiles * args.perBlock, c = blockIdx.x % tiles * kTileColumns + laneIndex() * kUnit;
  const int left = args.vocabulary - first, owned = left < args.perBlock ? left : args.perBlock;
  bool add = args.add;
  Int64 begin = 0;
  do {
    int length = 0;
    for (; begin < args.rows && length <= kListed - kTokensARound; begin += kTokensARound)
      length = appendTokens(list, length, args.tokens, begin, args.rows, first, owned);
    for (int token = 0; token < owned; ++token) {
      Unit total = {};
      if (c < args.columns) {
#pragma unroll 4
        for (int e = warpOfBlock(); e < length; e += kWarps)
          if (list.token[e] == token) {
            const Unit d = loadUnit(args.dY.row<Element>(list.row[e]) + c);
#pragma unroll
            for (int i = 0; i < kUnit; ++i)
              total.x[i] += d.x[i];
          }
      }
#pragma unroll
      for (int i = 0; i < kUnit; ++i)
        sums[warpOfBlock()][laneIndex() * kUnit + i] = total.x[i];
      __syncthreads();
      const int column = blockIdx.x % tiles * kTileColumns + threadIdx.x;
      if (column < args.columns) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp)
          sum += sums[warp][threadIdx.x];
        Gradient *to = args.dTable.row<Gradient>(first + token) + column;
        storeElement(to, add ? sum + loadElement(to) : sum);
      }
      __syncthreads();
    }
    add = true;
  } while (begin < args.rows);
}

} // namespace tw
