// The kernels' one parameter: byte for byte the runtime's KernelArgs (tilewright/KernelArgs.h). Strides in elements.
#pragma once
#include "common/Types.cuh"

namespace tw {

struct Tensor {
  void *data;
  Int64 batchStride, headStride, rowStride;
};

struct Table {
  const void *data;
  Int64 batchStride;
  const int *tileMin, *tileMax; ///< Extremes of each 16 elements.
  Int64 extentBatchStride;
};

struct Args {
  Tensor q, k, v, o;
  Tensor dO, dQ, dK, dV;
  float *lse, *delta; ///< (batch, headsQ, seqQ)
  int batch, headsQ, headsKV, seqQ, seqKV;
  float scale;
  Table tables[8];
  float *dqSums;  ///< (batch, headsQ, q tiles) of fp32 fragments: see sm80/Reduce.cuh.
  float *lseRest; ///< What rounding lse left out, (batch, headsQ, seqQ), or null.
  float *partials; ///< States of a forward that splits keys.
};

static_assert(sizeof(Args) == 8 * 32 + 16 + 24 + 8 * 40 + 24, "the runtime's KernelArgs");

/// First element of one head of one batch entry.
template <class Element> __device__ __forceinline__ Element *headOf(const Tensor &tensor, int head, int batch) {
  return static_cast<Element *>(tensor.data) + batch * tensor.batchStride + head * tensor.headStride;
}

/// Row statistics (LSE, delta) of one head of one batch entry.
__device__ __forceinline__ float *rowsOf(float *rows, const Args &args, int head, int batch) {
  return rows + (Int64(batch) * args.headsQ + head) * args.seqQ;
}

} // namespace tw
