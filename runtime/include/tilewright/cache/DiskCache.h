// The kernel cache on disk. Many processes use one folder at the same time without locks: an entry appears whole by a
// rename, a process that loses a race keeps its own bytes, and anything that is not a perfect entry counts as absent.
// Nothing here fails a caller: a cache that cannot be used costs a warning and a compile. Thread-safe.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/Log.h"
#include "tilewright/cache/CacheEntry.h"
#include <chrono>
#include <optional>

namespace tilewright TILEWRIGHT_PUBLIC {

class DiskCache {
public:
  struct Options {
    std::string directory;            ///< Empty: no disk.
    uint64_t maxBytes = 0;            ///< 0: unlimited.
    std::vector<std::string> bundles; ///< Read-only, searched first, in this order.
    std::shared_ptr<Log> log;
    /// An entry's time of last use is refreshed when it is older than this.
    std::chrono::seconds touchInterval = std::chrono::hours(24);
    /// Entries used more recently than this are never evicted.
    std::chrono::seconds protectedAge = std::chrono::minutes(2);
  };

  /// Checks the folder's owner and permissions, sweeps temporary files of dead processes and old failed sources. A
  /// missing folder is created by the first publish().
  explicit DiskCache(Options options);

  struct Hit {
    CacheEntry entry;
    std::string path;
    bool fromBundle = false;
  };
  /// A verified entry, or nothing. A damaged one is reported once, deleted (not from bundles) and counts as absent.
  std::optional<Hit> find(const std::string &key);

  /// Writes the entry, then evicts down to the byte limit. The entry's path, or empty when it could not be written.
  std::string publish(const CacheEntry &entry);

  /// For an entry that verified but does not load: warns and deletes it, unless a bundle holds it.
  void discard(const std::string &path, bool fromBundle, std::string_view reason);

  /// The folder for sources of kernels that did not compile, created; empty when there is none.
  std::string failedDirectory();

  /// The compilers ("NVRTC 13.0") that made the entries of a kind: what keys to try where no compiler is installed.
  std::vector<std::string> compilers(PayloadKind kind);

  bool usable() const { return writable; } ///< False: only bundles serve.
  const std::string &directory() const { return options.directory; }

private:
  void sweep();
  bool ensureDirectory();
  void warn(const std::string &subject, std::string_view message);

  Options options;
  bool writable = false;
};

} // namespace tilewright
