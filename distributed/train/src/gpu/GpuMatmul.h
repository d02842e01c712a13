// Matrix products on a GPU: descriptors and the algorithm of each shape are found once and kept.
#pragma once

#include "gpu/CublasLt.h"
#include "tilewright/cuda/DeviceMemory.h"
#include "tilewright/train/Matrix.h"
#include <map>
#include <tuple>

namespace tilewright::train {

/// One thread and one stream at a time: all products share a workspace.
class GpuMatmul {
public:
  /// Operands are of type `operands`, sums are in fp32. `tf32`: fp32 operands may be rounded to TF32.
  static Expected<std::unique_ptr<GpuMatmul>> create(std::shared_ptr<const cuda::Device> device,
                                                     const Environment &environment, ElementType operands, bool tf32);
  ~GpuMatmul();
  GpuMatmul(const GpuMatmul &) = delete;
  GpuMatmul &operator=(const GpuMatmul &) = delete;

  /// c = op(a) op(b), or c += with `add`. c is fp32, or bf16 where the operands are. Enqueues and returns; the same
  /// shapes at the same alignments give the same bits.
  Status run(const Matrix &a, bool transposeA, const Matrix &b, bool transposeB, const Matrix &c, bool add,
             void *stream);
  std::string description() const { return library->versionText(); }

private:
  /// What decides an algorithm: sizes, strides, transpositions, the result's type, and alignments.
  using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, ElementType, uint32_t,
                           uint32_t, uint32_t>;
  /// Everything a call hands over but for addresses.
  struct Product {
    void *desc = nullptr, *a = nullptr, *b = nullptr, *c = nullptr;
    CublasLtAlgorithm algorithm{};
  };

  GpuMatmul(std::shared_ptr<const cuda::Device> device, std::shared_ptr<const CublasLt> library, ElementType operands,
            bool tf32)
      : device(std::move(device)), library(std::move(library)), operands(operands), tf32(tf32) {}
  Status describe(const Matrix &a, bool transposeA, const Matrix &b, bool transposeB, const Matrix &c,
                  Product &product);
  Status choose(const Matrix &a, const Matrix &b, const Matrix &c, Product &product);
  void forget(Product &product);

  std::shared_ptr<const cuda::Device> device;
  std::shared_ptr<const CublasLt> library;
  ElementType operands;
  bool tf32;
  void *handle = nullptr;
  cuda::DeviceMemory workspace;
  std::map<Shape, Product> products;
};

} // namespace tilewright::train
