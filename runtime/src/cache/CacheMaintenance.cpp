#include "tilewright/cache/CacheMaintenance.h"
#include "tilewright/cache/TemporaryFiles.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace tilewright {
namespace {

constexpr std::string_view kFailedFolder = "failed";

enum class FileKind { Entry, Temporary, Failed, Foreign };

struct FolderItem {
  std::string name, path, key;
  FileKind kind = FileKind::Foreign;
};

/// What lies in a cache folder. One that does not exist is empty.
Expected<std::vector<FolderItem>> scan(const std::string &directory) {
  std::vector<FolderItem> items;
  DIR *folder = opendir(directory.c_str());
  if (!folder) {
    if (errno == ENOENT) return items;
    return fail(Stage::Cache, fmt::format("cannot read the cache folder {}: {}", directory, std::strerror(errno)),
                "check its permissions, or set TILEWRIGHT_CACHE_DIR");
  }
  while (dirent *entry = readdir(folder)) {
    FolderItem item;
    item.name = entry->d_name;
    if (item.name == "." || item.name == "..") continue;
    item.path = directory + "/" + item.name;
    if (isEntryName(item.name, &item.key))
      item.kind = FileKind::Entry;
    else if (isTemporaryName(item.name))
      item.kind = FileKind::Temporary;
    else if (item.name == kFailedFolder)
      item.kind = FileKind::Failed;
    items.push_back(std::move(item));
  }
  closedir(folder);
  return items;
}

uint64_t sizeOf(const std::string &path) {
  struct stat state;
  return lstat(path.c_str(), &state) == 0 && S_ISREG(state.st_mode) ? static_cast<uint64_t>(state.st_size) : 0;
}

int64_t lastUseOf(const std::string &path) {
  struct stat state;
  return lstat(path.c_str(), &state) == 0 ? state.st_mtime : 0;
}

int countFiles(const std::string &path) {
  std::error_code code;
  int count = 0;
  for (fs::directory_iterator item(path, code), end; !code && item != end; item.increment(code))
    ++count;
  return count;
}

} // namespace

Expected<CacheInfo> cacheInfo(const std::string &directory) {
  auto items = scan(directory);
  if (!items) return propagate(items);
  CacheInfo info;
  info.directory = directory;
  info.exists = access(directory.c_str(), F_OK) == 0;
  for (const FolderItem &item : *items) {
    if (item.kind == FileKind::Temporary) ++info.temporaryFiles;
    if (item.kind == FileKind::Foreign) ++info.foreignFiles;
    if (item.kind == FileKind::Failed) info.failedSources = countFiles(item.path);
    if (item.kind != FileKind::Entry) continue;
    ++info.entries;
    info.bytes += sizeOf(item.path);
    int64_t used = lastUseOf(item.path);
    info.oldestUse = info.oldestUse ? std::min(info.oldestUse, used) : used;
    info.newestUse = std::max(info.newestUse, used);
  }
  return info;
}

Expected<std::vector<CacheListing>> cacheList(const std::string &directory) {
  auto items = scan(directory);
  if (!items) return propagate(items);
  std::vector<CacheListing> listings;
  for (const FolderItem &item : *items) {
    if (item.kind != FileKind::Entry) continue;
    EntryFile file = readEntryFile(directory, item.key, false);
    if (!file.entry && file.damage.empty()) continue; // Gone meanwhile.
    CacheListing listing{
        item.path, item.key, sizeOf(item.path), lastUseOf(item.path), std::move(file.entry), std::move(file.damage)};
    if (listing.entry) listing.entry->payload = {};
    listings.push_back(std::move(listing));
  }
  std::ranges::sort(listings, [](const CacheListing &a, const CacheListing &b) {
    return a.lastUsed != b.lastUsed ? a.lastUsed > b.lastUsed : a.key < b.key;
  });
  return listings;
}

Expected<Evicted> cacheClear(const std::string &directory) {
  auto items = scan(directory);
  if (!items) return propagate(items);
  Evicted removed;
  std::string firstFailure;
  for (const FolderItem &item : *items) {
    if (item.kind == FileKind::Foreign) continue;
    // A temporary file of a live process is about to become an entry; without it that process keeps its bytes and
    // warns.
    if (item.kind == FileKind::Temporary && !isStaleTemporary(directory, item.name)) continue;
    uint64_t bytes = sizeOf(item.path);
    std::error_code code;
    fs::remove_all(item.path, code);
    if (code && firstFailure.empty()) firstFailure = fmt::format("{}: {}", item.path, code.message());
    if (code || item.kind != FileKind::Entry) continue;
    ++removed.entries;
    removed.bytes += bytes;
  }
  if (!firstFailure.empty())
    return fail(Stage::Cache, fmt::format("cannot remove {}", firstFailure), "check the folder's permissions");
  return removed;
}

Expected<Evicted> cachePrune(const std::string &directory, uint64_t maxBytes) {
  auto items = scan(directory);
  if (!items) return propagate(items);
  for (const FolderItem &item : *items) {
    std::error_code ignored;
    if (item.kind == FileKind::Temporary && isStaleTemporary(directory, item.name)) fs::remove_all(item.path, ignored);
  }
  return evictEntries(directory, maxBytes, 0);
}

Expected<int> cacheExport(const std::string &directory, const std::string &bundle,
                          const std::vector<std::string> &keys) {
  std::vector<std::string> wanted = keys;
  if (wanted.empty()) {
    auto items = scan(directory);
    if (!items) return propagate(items);
    for (const FolderItem &item : *items)
      if (item.kind == FileKind::Entry) wanted.push_back(item.key);
  }
  std::error_code code;
  fs::create_directories(bundle, code);
  if (code || !fs::is_directory(bundle, code))
    return fail(Stage::Cache,
                fmt::format("cannot create the bundle folder {}: {}", bundle,
                            code ? code.message() : "a file stands in its place"),
                "choose another folder");
  int copied = 0;
  for (const std::string &key : wanted) {
    EntryFile file = readEntryFile(directory, key, false);
    if (!file.entry) {
      // Without a selection damaged entries are left out: the cache treats them as absent.
      if (keys.empty()) continue;
      return fail(Stage::Cache,
                  fmt::format("kernel {} is not in the cache {}{}", key, directory,
                              file.damage.empty() ? "" : ": " + file.damage),
                  "list the cache to see the keys it holds");
    }
    const std::string head = encodeEntryHead(*file.entry);
    const std::string_view parts[] = {head, {file.entry->payload.data(), file.entry->payload.size()}};
    if (Status status = writeFileAtomically(bundle, key + std::string(kEntrySuffix), parts, 0644); !status)
      return propagate(status);
    ++copied;
  }
  return copied;
}

Expected<CacheVerification> cacheVerify(const std::string &directory) {
  auto items = scan(directory);
  if (!items) return propagate(items);
  CacheVerification result;
  for (const FolderItem &item : *items) {
    if (item.kind == FileKind::Temporary && isStaleTemporary(directory, item.name))
      result.damages.push_back({item.path, "temporary file of a process that is gone",
                                "the next use of the cache removes it, as does pruning it"});
    if (item.kind != FileKind::Entry) continue;
    EntryFile file = readEntryFile(directory, item.key, false);
    if (file.entry) ++result.good;
    if (!file.damage.empty())
      result.damages.push_back({item.path, file.damage,
                                file.foreign ? "it is never loaded; delete it, or correct its owner and permissions"
                                             : "delete it or let the next use of this kernel replace it"});
  }
  std::ranges::sort(result.damages, {}, &CacheDamage::path);
  return result;
}

} // namespace tilewright
