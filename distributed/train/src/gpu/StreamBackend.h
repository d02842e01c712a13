// The GPU's backend, in parts: products (GpuMatmul), layers (StreamLayers), attention (StreamAttention).
#pragma once

#include "gpu/GpuMatmul.h"
#include "gpu/LayerKernels.h"
#include "tilewright/cuda/Stream.h"
#include "tilewright/train/GpuBackend.h"
#include <array>
#include <vector>

namespace tilewright::train {

class StreamBackend final : public GpuBackend {
public:
  StreamBackend(std::shared_ptr<Context> context, const GpuOptions &options, Target target, cuda::Stream stream,
                std::shared_ptr<const cuda::Device> device, CudaKernels kernels, std::unique_ptr<GpuMatmul> products)
      : context(std::move(context)), options(options), target(std::move(target)), device(std::move(device)),
        ownStream(std::move(stream)), kernels(std::move(kernels)), products(std::move(products)) {}

  void *stream() const override { return ownStream.handle(); }
  const std::shared_ptr<const cuda::Device> &gpu() const override { return device; }

  ElementType activationType() const override { return options.type; }
  int64_t headRows() const override { return 4096; }
  int64_t columnUnit() const override { return kUnit; }
  void useSchedules(const std::vector<PlanChoice> &plans) override { schedules = plans; }
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
  Status prepareAttention(const AttentionShape &shape, bool gradients) override;
  Status attention(const AttentionShape &shape, const AttentionTensors &tensors) override;
  Status attentionBackward(const AttentionShape &shape, const AttentionTensors &tensors,
                           const AttentionGradients &gradients) override;

private:
  /// What a piece of scratch memory holds until the same place is asked for again.
  enum Place { OperandA, OperandB, Result, RowSums, DqSums, kPlaces };
  Expected<void *> scratch(int64_t bytes, Place place);
  /// The matrix itself if it has the activations' type, else a converted copy.
  Expected<Matrix> asActivation(const Matrix &from, Place place);
  Status convert(const Matrix &from, const Matrix &to, bool add);
  /// Launches one warp a row.
  template <class Args> Status launchRows(const std::string &symbol, int64_t rows, const Args &args) const {
    return kernels.launch(symbol, stream(), (rows + kRowsABlock - 1) / kRowsABlock, args);
  }

  Problem problemOf(const AttentionShape &shape, Direction direction) const;
  KernelArgs arguments(const AttentionShape &shape, const AttentionTensors &tensors) const;
  std::vector<KernelRole> backwardRoles(const AttentionShape &shape) const;
  Expected<Kernel> kernel(const AttentionShape &shape, KernelRole role);

  std::shared_ptr<Context> context;
  GpuOptions options;
  Target target;
  std::shared_ptr<const cuda::Device> device;
  cuda::Stream ownStream;
  CudaKernels kernels;
  std::unique_ptr<GpuMatmul> products;
  std::vector<cuda::DeviceMemory> buffers;
  std::array<cuda::DeviceMemory, kPlaces> places;
  std::vector<PlanChoice> schedules;
  std::map<std::tuple<int64_t, KernelRole>, Kernel> attentionKernels; ///< By head dim and role.
};

} // namespace tilewright::train
