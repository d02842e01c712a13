// Standard attention in double precision on the values as stored: what every kernel is held to. Straightforward loops,
// no tiling of the softmax, masks and scores by the plain evaluator. Time O(pairs), memory O(Sk) a thread besides the
// results, so that a few thousand tokens are checked in seconds.
//
//   S = scale Q K^T,  T = score(S),  P = softmax over the visible T,  O = P V,  LSE = log sum exp T
//   dV = P^T dO,  dP = dO V^T,  dS = P (dP - rowsum(P dP)) score'(S),  dQ = scale dS K,  dK = scale dS^T Q
//
// A key that the mask hides, or whose score is -infinity, takes no part: what it holds, NaN included, does not matter.
// A row without keys gives O = 0, LSE = -infinity and no gradient. A NaN that a row does see makes its results NaN.
#pragma once

#include "tilewright/expr/Evaluator.h"
#include "tilewright/tensor/Tensor.h"
#include <vector>

namespace tilewright {

/// Views of the caller's tensors, of any floating element type.
struct AttentionInputs {
  TensorView q, k, v;
  TensorView dO;                       ///< For Direction::Backward.
  std::vector<expr::TableData> tables; ///< In the order of Problem::tables.
};

struct AttentionOptions {
  /// Query rows to compute, ascending; empty means all. With a choice of rows dK and dV, which need all, are left out.
  std::vector<int64_t> rows;
  int threads = 0; ///< 0: one a hardware thread.
};

/// Error that rounding (sums in fp32; P, dS and O stored in the dtype) must be granted in each result, in whatever
/// order a kernel works: a first-order estimate from the inputs' norms. It matters where terms cancel and the naive
/// computation happens to be exact: a row that sees one key has dQ = 0, and any fp32 kernel returns the noise of two
/// dot products instead. See Compare.h.
struct RoundingNoise {
  double o = 0, lse = 0, dQ = 0, dK = 0, dV = 0;
};

struct AttentionResult {
  Tensor o;                  ///< (batch, headsQ, rows, dimV); row r is query rows[r] where rows were chosen.
  Tensor lse;                ///< (batch, headsQ, rows, 1)
  Tensor dQ;                 ///< (batch, headsQ, rows, dimQK); like dK and dV valid for Direction::Backward only.
  Tensor dK, dV;             ///< (batch, headsKV, seqKV, dimQK or dimV)
  std::vector<int64_t> rows; ///< As asked for; empty means all.
  RoundingNoise noise;       ///< Filled by referenceAttention.
};

/// In double precision; results are F64 tensors. The problem must be valid and the shapes must be its own.
Expected<AttentionResult> referenceAttention(const Problem &problem, const AttentionInputs &inputs,
                                             const AttentionOptions &options = {});

/// `count` rows of a sequence, ascending: the first, the last, and others at random. All rows if there are no more.
std::vector<int64_t> sampleRows(int64_t sequence, int64_t count, uint64_t seed);

} // namespace tilewright
