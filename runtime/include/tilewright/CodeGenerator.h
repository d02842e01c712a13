// The seam between runtime and compiler: the runtime prepares, caches and launches kernels and asks a CodeGenerator
// for code only on a cache miss. libtilewright's compiler implements it; a host with a warm cache or a bundle needs none.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/KernelArgs.h"
#include "tilewright/plan/KernelPlan.h"
#include <memory>
#include <span>

namespace tilewright TILEWRIGHT_PUBLIC {

/// What the compiler makes of a plan. CUDA: self-contained source text. CPU: a relocatable object.
struct GeneratedCode {
  std::string symbol;        ///< Entry point.
  std::string cudaSource;    ///< CUDA targets only.
  std::vector<char> object;  ///< CPU target only.
  int64_t scratchBytes = 0;  ///< CPU target only: working memory a thread needs.
};

/// A loaded CPU kernel. Thread-safe: each caller brings its own scratch memory (64-byte aligned).
class HostCode {
public:
  virtual ~HostCode() = default;
  /// Computes blocks [begin, end) of the kernel's grid; see blockCount() in Kernel.h for the numbering.
  virtual void run(const KernelArgs &args, int64_t begin, int64_t end, void *scratch) const = 0;
};

class CodeGenerator {
public:
  virtual ~CodeGenerator() = default;
  /// Thread-safe: every call builds in its own MLIR context.
  virtual Expected<GeneratedCode> generate(const KernelPlan &plan) = 0;
  /// Links an object that generate() made, now or in an earlier process.
  virtual Expected<std::unique_ptr<HostCode>> loadHostCode(std::span<const char> object, const std::string &symbol) = 0;
};

/// SHA-256 over the compiler's and the templates' sources, taken at build time. Generated code is a pure function of
/// (plan, generator id), so the pair stands for the full emitted text in cache keys and a warm start needs no compiler.
extern const char *const kGeneratorId;

} // namespace tilewright
