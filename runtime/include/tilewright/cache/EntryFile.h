// Entry files in a folder: reading one with suspicion, and deleting the least recently used.
#pragma once

#include "tilewright/cache/CacheEntry.h"
#include <optional>

namespace tilewright {

/// What reading a cache file found.
struct EntryFile {
  std::optional<CacheEntry> entry;
  std::string damage;   ///< Empty when `entry` is set or the file does not exist.
  bool foreign = false; ///< The damage is the owner or the permissions.
  int64_t lastUsed = 0; ///< Seconds since 1970, UTC.
  uint64_t inode = 0;
};

/// Reads and verifies `directory`/`key`.twk without following links. In a cache folder an entry must belong to this
/// user and be writable by nobody else; in a bundle it may also belong to root. `touchAfter` seconds of age refresh the
/// time of last use; negative never does.
EntryFile readEntryFile(const std::string &directory, const std::string &key, bool bundle, int64_t touchAfter = -1);

/// Deletes least recently used entries until the folder's entries hold at most `maxBytes`; spares those used within the
/// last `protectedSeconds`. Number of entries and bytes removed.
struct Evicted {
  int entries = 0;
  uint64_t bytes = 0;
};
Evicted evictEntries(const std::string &directory, uint64_t maxBytes, int64_t protectedSeconds);

} // namespace tilewright
