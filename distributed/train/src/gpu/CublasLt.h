// NVIDIA's matrix products, opened when first needed, so that one binary starts everywhere and says what is missing.
// Names and numbers are those of cublasLt.h of CUDA 12 and 13, whose binary interface is stable.
#pragma once

#include "tilewright/Environment.h"
#include "tilewright/cuda/DynamicLibrary.h"
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tilewright::train {

struct CublasLtAlgorithm {
  uint64_t data[8];
};
struct CublasLtHeuristic {
  CublasLtAlgorithm algorithm;
  size_t workspaceBytes;
  int state; ///< 0: the rest counts.
  float waves;
  int reserved[4];
};

enum CublasLtValue : int {
  // cudaDataType
  kCudaF32 = 0,
  kCudaBF16 = 14,
  // cublasComputeType_t
  kComputeF32 = 68,
  kComputeTF32 = 77,
  // cublasLtMatmulDescAttributes_t
  kDescTransposeA = 3,
  kDescTransposeB = 4,
  // cublasLtMatmulPreferenceAttributes_t
  kPreferWorkspaceBytes = 1,
  kPreferReductions = 3,
  kPreferAlignmentA = 5,
  kPreferAlignmentB = 6,
  kPreferAlignmentC = 7,
  kPreferAlignmentD = 8,
  /// cublasLtReductionScheme_t: parts of a long sum meet in fp32, not in the result's type.
  kReductionInComputeType = 2,
};

struct CublasLtApi {
  size_t (*getVersion)() = nullptr;
  const char *(*getStatusString)(int code) = nullptr;
#define TILEWRIGHT_CUBLASLT_SYMBOL(member, name, parameters) int(*member) parameters = nullptr;
#include "gpu/CublasLtSymbols.def"
};

class CublasLt {
public:
  /// Opens TILEWRIGHT_CUBLASLT, or libcublasLt.so of CUDA 13 or 12, that of `preferredMajor` (the driver's) first. The
  /// error lists where it was looked for and says how to get it.
  static Expected<std::shared_ptr<const CublasLt>> open(const Environment &environment, int preferredMajor = 0);

  const CublasLtApi &api() const { return functions; }
  std::string versionText() const; ///< "cuBLASLt 13.0.2"
  const std::string &path() const { return library.path(); }
  /// Success, or an error that says what could not be done and why.
  Status check(int code, Stage stage, std::string_view what) const;

private:
  explicit CublasLt(cuda::DynamicLibrary opened) : library(std::move(opened)) {}

  cuda::DynamicLibrary library;
  CublasLtApi functions;
};

} // namespace tilewright::train
