// NCCL, opened when first needed, so that one binary starts everywhere and says what is missing.
#pragma once

#include "tilewright/cuda/DynamicLibrary.h"
#include <climits>
#include <cstdint>
#include <memory>

namespace tilewright::dist {

struct NcclUniqueId {
  char bytes[128];
};

/// The configuration as NCCL 2.17 had it; later versions take it by its size and version.
struct NcclConfig {
  static constexpr int kUnset = INT_MIN;
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21701; ///< major * 10000 + minor * 100 + patch
  int blocking = kUnset, clusterSize = kUnset, leastBlocks = kUnset, mostBlocks = kUnset;
  const char *network = nullptr;
  int splitShare = kUnset;
};

enum NcclCode : int { kNcclSuccess = 0, kNcclInProgress = 7 };

struct NcclApi {
  int (*getVersion)(int *version) = nullptr;
  const char *(*getErrorString)(int code) = nullptr;
  const char *(*getLastError)(void *communicator) = nullptr;
#define TILEWRIGHT_NCCL_SYMBOL(member, name, parameters) int(*member) parameters = nullptr;
#include "nccl/NcclSymbols.def"
};

class NcclLibrary {
public:
  /// Opens `overridePath` (TILEWRIGHT_NCCL), or libnccl.so.2 from the loader's and the usual places. Errors: not found,
  /// or older than 2.19.
  static Expected<std::shared_ptr<const NcclLibrary>> open(const std::string &overridePath = {},
                                                           const std::string &libraryPath = {});

  const NcclApi &api() const { return functions; }
  std::string versionText() const; ///< "NCCL 2.27.3"
  const std::string &path() const { return library.path(); }
  /// "cannot WHAT: NCCL 2.27.3: its text; the last error it logged".
  Error error(int code, const std::string &what, void *communicator = nullptr) const;

private:
  explicit NcclLibrary(cuda::DynamicLibrary opened) : library(std::move(opened)) {}
  Status resolve();

  cuda::DynamicLibrary library;
  NcclApi functions;
  int version = 0;
};

} // namespace tilewright::dist
