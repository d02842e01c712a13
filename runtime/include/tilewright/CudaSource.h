// CUDA kernels that are no attention: a text that a library brings along, with several of them. A Context compiles and
// caches it as it does its own kernels.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/Kernel.h"
#include <map>

namespace tilewright TILEWRIGHT_PUBLIC {

struct CudaSource {
  std::string name;                 ///< A C identifier: names it in logs and errors, and the files of a dump.
  std::string text;                 ///< Self-contained CUDA C++; with the symbols it decides the cache key.
  std::vector<std::string> symbols; ///< Its entry points, extern "C".
  int threads = 256;                ///< Of a block, of all of them. Grids have one dimension.
};

/// A source's kernels, loaded on one device. Movable. Launches are safe from several threads.
class CudaKernels {
public:
  CudaKernels(PrepareReport report, std::map<std::string, std::unique_ptr<cuda::Module>, std::less<>> modules)
      : prepared(std::move(report)), modules(std::move(modules)) {}

  const PrepareReport &report() const { return prepared; }

  /// Enqueues `symbol`, one of CudaSource::symbols, with `args` as its only parameter. No blocks is success.
  template <class Args> Status launch(std::string_view symbol, void *stream, int64_t blocks, const Args &args) const {
    if (blocks == 0) return {};
    return modules.find(symbol)->second->launch(stream, static_cast<unsigned>(blocks), &args);
  }

private:
  PrepareReport prepared;
  std::map<std::string, std::unique_ptr<cuda::Module>, std::less<>> modules;
};

} // namespace tilewright
