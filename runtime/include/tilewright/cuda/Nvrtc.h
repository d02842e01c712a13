// NVIDIA's run-time compiler: CUDA C++ source to cubin or PTX, in this process and without a GPU. Thread-safe: compiles
// of several threads run in parallel.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/cuda/CompileReport.h"
#include "tilewright/cuda/DynamicLibrary.h"
#include <cstddef>
#include <memory>
#include <span>

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

struct NvrtcApi {
  const char *(*getErrorString)(int code) = nullptr;
#define TILEWRIGHT_NVRTC_SYMBOL(member, name, parameters) int(*member) parameters = nullptr;
#include "tilewright/cuda/NvrtcSymbols.def"
};

struct NvrtcVersion {
  int major = 0, minor = 0;
  bool operator==(const NvrtcVersion &) const = default;
  std::string text() const;                         ///< "NVRTC 13.0": the compiler's name in cache keys.
  static NvrtcVersion parse(std::string_view text); ///< The inverse; {0, 0} for anything else.
  int cudaVersion() const { return major * 1000 + minor * 10; }
};

enum class NvrtcOutput { Cubin, Ptx };

struct NvrtcRequest {
  std::string_view source; ///< Self-contained: no headers are on the search path.
  /// The kernel's symbol. It also names the virtual source file and what is written on failure.
  std::string name;
  std::string architecture;              ///< With its letter: "sm_90a".
  std::vector<std::string> options = {}; ///< After the ones that always apply (see fixedOptions()).
  NvrtcOutput output = NvrtcOutput::Cubin;
  /// Where a source that does not compile is written with line numbers; empty is the system's temporary folder.
  std::string failedDir = {};
};

struct NvrtcResult {
  std::vector<char> code; ///< The cubin, or PTX text.
  std::string log;        ///< Also of a successful compile: ptxas' figures and warnings.
  double milliseconds = 0;
  CompileReport report; ///< Cubins only.
};

class Nvrtc {
public:
  struct Search {
    std::string overridePath;
    std::string libraryPath; ///< LD_LIBRARY_PATH
    std::string cudaHome;
    int preferredMajor = 0; ///< CUDA major version to try first, the driver's say; 0 is the newest.
  };

  /// The version of the NVRTC that open() would take, as far as file names tell: opening it costs some milliseconds
  /// that a cache hit need not pay. {0, 0} when they do not tell.
  static NvrtcVersion peekVersion(const Search &search);
  static Expected<std::shared_ptr<const Nvrtc>> open(const Search &search);

  NvrtcVersion version() const { return libraryVersion; }
  const std::string &path() const { return library.path(); }
  /// 75, 80, 86, ...: numbers without letters.
  const std::vector<int> &architectures() const { return supported; }

  /// Errors carry the first error line, the whole log, and the path of the numbered source (for errors of ptxas also
  /// that of the PTX, and the line of it).
  Expected<NvrtcResult> compile(const NvrtcRequest &request) const;

private:
  explicit Nvrtc(DynamicLibrary opened) : library(std::move(opened)) {}
  Status resolve();
  tl::unexpected<Error> explain(const NvrtcRequest &request, int code, std::string log,
                                std::span<const std::string> options) const;

  DynamicLibrary library;
  NvrtcApi functions;
  NvrtcVersion libraryVersion;
  std::vector<int> supported;
};

/// The options of every compile in a fixed order, without the architecture: they enter the cache key. NVRTC's own disk
/// cache is off (ours serves, and a cached compile has no log), and so is its change of the host's stack limit.
std::vector<std::string> fixedNvrtcOptions(NvrtcVersion version);

} // namespace cuda
} // namespace tilewright
