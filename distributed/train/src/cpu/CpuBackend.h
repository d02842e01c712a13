// The host's backend, in parts: products (CpuMatmul), layers (CpuLayers), attention (CpuAttention).
#pragma once

#include "RowLoops.h"
#include "tilewright/OpenBlas.h"
#include "tilewright/tensor/AlignedBuffer.h"
#include "tilewright/train/CpuBackend.h"
#include <map>
#include <tuple>
#include <vector>

namespace tilewright::train {

class CpuBackend final : public Backend {
public:
  CpuBackend(OpenBlas blas, std::shared_ptr<Context> context, ThreadPool &pool);

  ElementType activationType() const override { return ElementType::F32; }
  int64_t headRows() const override { return 256; }
  std::string description() const override;
  double peakFlops() override;

  Expected<void *> allocate(int64_t bytes, std::string_view what) override;
  Status fromHost(void *to, const void *from, int64_t bytes) override;
  Status toHost(void *to, const void *from, int64_t bytes) override;
  Status clear(void *data, int64_t bytes) override;

  Status matmul(const Matrix &a, bool transposeA, const Matrix &b, bool transposeB, const Matrix &c, bool add) override;
  Status embedding(const int32_t *tokens, const Matrix &table, const Matrix &y) override;
  Status embeddingBackward(const int32_t *tokens, const Matrix &dY, const Matrix &dTable, bool add) override;
  Status rmsNorm(const Matrix &x, const Matrix &addend, const Matrix &sum, const Matrix &weight, double epsilon,
                 const Matrix &y, float *inverse) override;
  Status rmsNormBackward(const Matrix &dY, const Matrix &x, const Matrix &weight, const float *inverse,
                         const Matrix &dX, bool addToX, const Matrix &dWeight, bool addToWeight) override;
  Status rope(const Matrix &x, int64_t headDim, int64_t length, int64_t start, const RotaryTables &tables,
              bool inverse) override;
  Status swiglu(const Matrix &gate, const Matrix &up, const Matrix &y) override;
  Status swigluBackward(const Matrix &gate, const Matrix &up, const Matrix &dY, const Matrix &dGate,
                        const Matrix &dUp) override;
  Status crossEntropy(const Matrix &logits, const int32_t *targets, double *loss, bool gradient) override;
  void useSchedules(const std::vector<PlanChoice> &plans) override { schedules = plans; }
  Status prepareAttention(const AttentionShape &shape, bool gradients) override;
  Status attention(const AttentionShape &shape, const AttentionTensors &tensors) override;
  Status attentionBackward(const AttentionShape &shape, const AttentionTensors &tensors,
                           const AttentionGradients &gradients) override;

private:
  /// Rows [begin, end) of parts of [0, rows), on the pool.
  template <class Body> void parallel(int64_t rows, int64_t chunk, Body body) {
    pool.run(rows, chunk, [&](ChunkQueue &chunks) {
      for (int64_t begin, end; chunks.take(begin, end);)
        body(begin, end);
    });
  }
  /// The matrix itself if it is fp32, else a widened copy that lives until the next use of this place.
  Expected<Matrix> widened(const Matrix &from, int place);
  Expected<float *> scratch(int64_t elements, int place);
  Expected<Kernel> kernel(const AttentionShape &shape, KernelRole role);
  static KernelArgs arguments(const AttentionShape &shape, const AttentionTensors &tensors);

  OpenBlas blas;
  std::shared_ptr<Context> context;
  ThreadPool &pool;
  const RowLoops &loops;
  double peak = -1;
  std::vector<AlignedBuffer> buffers;
  AlignedBuffer places[3]; ///< Scratch memory: operand a, operand b, a result on its way.
  std::vector<PlanChoice> schedules;
  std::map<std::tuple<int64_t, KernelRole>, Kernel> kernels; ///< By head dim and role.
};

} // namespace tilewright::train
