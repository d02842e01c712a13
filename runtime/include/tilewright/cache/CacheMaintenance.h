// What a person does with a cache folder: look, list, clear, shrink, export, verify. Safe while other processes use it.
#pragma once

#include "tilewright/cache/EntryFile.h"

namespace tilewright {

struct CacheInfo {
  std::string directory;
  bool exists = false;
  int entries = 0;
  uint64_t bytes = 0;
  int temporaryFiles = 0;               ///< Being written now, or left by processes that died.
  int failedSources = 0;                ///< Numbered sources of kernels that did not compile.
  int foreignFiles = 0;                 ///< Not the cache's: never touched.
  int64_t oldestUse = 0, newestUse = 0; ///< Seconds since 1970, UTC; 0 without entries.
};
/// A folder that does not exist is an empty cache.
Expected<CacheInfo> cacheInfo(const std::string &directory);

struct CacheListing {
  std::string path, key;
  uint64_t bytes = 0;
  int64_t lastUsed = 0;
  std::optional<CacheEntry> entry; ///< Without its payload; absent when damaged.
  std::string damage;
};
/// Most recently used first.
Expected<std::vector<CacheListing>> cacheList(const std::string &directory);

/// Removes entries (damaged ones too), temporary files and failed sources, and nothing that is not the cache's own.
Expected<Evicted> cacheClear(const std::string &directory);

/// Shrinks to at most `maxBytes`, least recently used first, and removes temporary files of dead processes.
Expected<Evicted> cachePrune(const std::string &directory, uint64_t maxBytes);

/// Copies the good entries (all, or those of `keys`) into a bundle folder, creating it; entries already there stay.
/// The number copied. A key that is not in the cache is an error.
Expected<int> cacheExport(const std::string &directory, const std::string &bundle,
                          const std::vector<std::string> &keys = {});

struct CacheDamage {
  std::string path, what, remedy;
};
struct CacheVerification {
  int good = 0;
  std::vector<CacheDamage> damages;
};
/// Reads every file whole and reports each damage; changes nothing.
Expected<CacheVerification> cacheVerify(const std::string &directory);

} // namespace tilewright
