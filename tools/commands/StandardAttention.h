// Attention as it is written without fusing: S = scale Q K^T by sgemm, softmax over the rows of S in memory, O = P V by
// sgemm. What the CPU target is measured against, so it is as fast as it can be made: OpenBLAS, a vectorised softmax
// that under a causal mask touches only what is visible, and the better of two ways to use the threads.
#pragma once

#include "tilewright/OpenBlas.h"
#include "tilewright/ThreadPool.h"
#include <vector>

namespace tilewright::tool {

/// fp32, (head, row, dim) contiguous; as many keys as queries.
struct StandardProblem {
  int64_t heads = 1, seq = 0, dim = 0;
  float scale = 1;
  bool causal = false;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  float *o = nullptr;
};

class StandardAttention {
public:
  enum class Threading {
    Inside, ///< One head at a time; OpenBLAS and the softmax use all threads.
    Heads,  ///< Each thread computes heads of its own with single-threaded OpenBLAS.
  };

  /// Opens OpenBLAS; the error says how to get it.
  static Expected<StandardAttention> open();

  void run(const StandardProblem &problem, Threading threading, ThreadPool &pool);
  /// Bytes of score matrices that run() holds at a time.
  static int64_t scoreBytes(const StandardProblem &problem, Threading threading, int threads);
  /// "OpenBLAS 0.3.21 ... SkylakeX"
  const std::string &library() const { return blas.description; }

private:
  void head(const StandardProblem &problem, int64_t head, float *scores, ThreadPool *pool) const;

  OpenBlas blas;
  std::vector<float> memory;
};

/// Softmax of one row in place: the first `visible` of `cols` scores, zeros behind them.
void softmaxRow(float *row, int64_t visible, int64_t cols);

} // namespace tilewright::tool
