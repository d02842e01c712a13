// A stand-in for cuBLASLt: matrix products on the host by their definition, with the descriptors' say. Sums are in
// double, so that what is compared against it sees one rounding.
#include "gpu/CublasLt.h"
#include "tilewright/tensor/Half.h"

using namespace tilewright;
using namespace tilewright::train;

namespace {

struct Desc {
  int32_t transposeA = 0, transposeB = 0;
};
struct Layout {
  int type;
  int64_t rows, columns, stride;

  double load(const void *data, int64_t row, int64_t column) const {
    const int64_t at = column * stride + row; // by columns
    return type == kCudaF32 ? static_cast<double>(static_cast<const float *>(data)[at])
                            : static_cast<double>(floatFromBFloat16(static_cast<const uint16_t *>(data)[at]));
  }
  void store(void *data, int64_t row, int64_t column, double value) const {
    const int64_t at = column * stride + row;
    if (type == kCudaF32)
      static_cast<float *>(data)[at] = static_cast<float>(value);
    else
      static_cast<uint16_t *>(data)[at] = bfloat16FromFloat(static_cast<float>(value));
  }
};

constexpr int kInvalidValue = 7; // CUBLAS_STATUS_INVALID_VALUE

} // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130002; }
const char *cublasLtGetStatusString(int code) { return code == kInvalidValue ? "invalid value" : "a status"; }
int cublasLtCreate(void **handle) { return *handle = new int(0), 0; }
int cublasLtDestroy(void *handle) { return delete static_cast<int *>(handle), 0; }
int cublasLtMatmulDescCreate(void **desc, int, int) { return *desc = new Desc, 0; }
int cublasLtMatmulDescDestroy(void *desc) { return delete static_cast<Desc *>(desc), 0; }
int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes) {
  if (bytes != 4 || (attribute != kDescTransposeA && attribute != kDescTransposeB)) return kInvalidValue;
  Desc &d = *static_cast<Desc *>(desc);
  return (attribute == kDescTransposeA ? d.transposeA : d.transposeB) = *static_cast<const int32_t *>(value), 0;
}
int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) return kInvalidValue;
  return *layout = new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride}, 0;
}
int cublasLtMatrixLayoutDestroy(void *layout) { return delete static_cast<Layout *>(layout), 0; }
int cublasLtMatmulPreferenceCreate(void **preference) { return *preference = new int(0), 0; }
int cublasLtMatmulPreferenceDestroy(void *preference) { return delete static_cast<int *>(preference), 0; }
int cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int wanted,
                                   CublasLtHeuristic *results, int *found) {
  *found = wanted > 0;
  return *results = {}, 0;
}

int cublasLtMatmul(void *, void *desc, const void *alpha, const void *a, void *aLayout, const void *b, void *bLayout,
                   const void *beta, const void *c, void *, void *d, void *dLayout, const CublasLtAlgorithm *, void *,
                   size_t, void *) {
  const Desc &how = *static_cast<Desc *>(desc);
  const Layout &left = *static_cast<Layout *>(aLayout), &right = *static_cast<Layout *>(bLayout),
               &result = *static_cast<Layout *>(dLayout);
  const int64_t inner = how.transposeA ? left.rows : left.columns;
  if ((how.transposeA ? left.columns : left.rows) != result.rows || left.type != right.type || c != d ||
      (how.transposeB ? right.rows : right.columns) != result.columns ||
      (how.transposeB ? right.columns : right.rows) != inner)
    return kInvalidValue;
  const double times = static_cast<double>(*static_cast<const float *>(alpha)),
               keep = static_cast<double>(*static_cast<const float *>(beta));
  for (int64_t row = 0; row < result.rows; ++row)
    for (int64_t column = 0; column < result.columns; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k)
        sum += (how.transposeA ? left.load(a, k, row) : left.load(a, row, k)) *
               (how.transposeB ? right.load(b, column, k) : right.load(b, k, column));
      result.store(d, row, column, times * sum + (keep != 0 ? keep * result.load(c, row, column) : 0));
    }
  return 0;
}
}
