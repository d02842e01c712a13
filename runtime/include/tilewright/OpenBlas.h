// OpenBLAS, opened when first needed: Tilewright starts without it.
#pragma once

#include "tilewright/Error.h"
#include <string>

namespace tilewright {

struct OpenBlas {
  /// cblas_sgemm: C = alpha op(A) op(B) + beta C, m x n over k; leading dimensions in elements.
  using Sgemm = void (*)(int order, int transA, int transB, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);
  Sgemm sgemm = nullptr;
  void (*setThreads)(int) = nullptr;
  std::string description; ///< "OpenBLAS 0.3.21 ... SkylakeX"

  /// The error lists where it was looked for and says how to get it.
  static Expected<OpenBlas> open();
};

} // namespace tilewright
