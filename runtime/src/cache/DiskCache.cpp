#include "tilewright/cache/DiskCache.h"
#include "tilewright/cache/EntryFile.h"
#include "tilewright/cache/TemporaryFiles.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tilewright {
namespace {

/// Creates a folder and its missing parents for this user alone, as the XDG base directory specification asks.
bool createPrivately(const std::string &directory) {
  if (mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return true;
  size_t slash = directory.find_last_not_of('/');
  slash = slash == std::string::npos ? slash : directory.rfind('/', slash);
  if (errno != ENOENT || slash == std::string::npos || slash == 0) return false;
  return createPrivately(directory.substr(0, slash)) && (mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST);
}

/// Why a folder must not serve as a cache; empty when it may.
std::string refusal(const std::string &directory, const struct stat &state) {
  if (!S_ISDIR(state.st_mode)) return fmt::format("{} is not a folder", directory);
  if (state.st_uid != geteuid())
    return fmt::format("{} belongs to user {}, expected {}", directory, state.st_uid, geteuid());
  if (state.st_mode & (S_IWGRP | S_IWOTH))
    return fmt::format("{} is writable by other users (mode {:03o}); use chmod go-w", directory, state.st_mode & 0777);
  return {};
}

constexpr std::chrono::hours kFailedSourceLife{24 * 7};

constexpr std::string_view kWithoutDisk = "kernels are compiled anew by every process; TILEWRIGHT_CACHE_DIR can name "
                                          "another folder";

} // namespace

DiskCache::DiskCache(Options given) : options(std::move(given)) {
  if (options.directory.empty()) return;
  // The host may change its working folder later.
  std::error_code ignored;
  options.directory = std::filesystem::absolute(options.directory, ignored).string();
  struct stat state;
  if (stat(options.directory.c_str(), &state) != 0) {
    writable = errno == ENOENT;
    if (!writable)
      warn(options.directory, fmt::format("the cache folder {} cannot be used: {}; {}", options.directory,
                                          std::strerror(errno), kWithoutDisk));
    return;
  }
  if (std::string reason = refusal(options.directory, state); !reason.empty()) {
    warn(options.directory, fmt::format("the cache folder is not used: {}; {}", reason, kWithoutDisk));
    return;
  }
  writable = true;
  sweep();
}

void DiskCache::sweep() {
  std::error_code ignored;
  if (DIR *folder = opendir(options.directory.c_str())) {
    while (dirent *entry = readdir(folder)) {
      std::string name = entry->d_name;
      if (isTemporaryName(name) && isStaleTemporary(options.directory, name))
        std::filesystem::remove_all(options.directory + "/" + name, ignored);
    }
    closedir(folder);
  }
  // Sources that did not compile are for the person who looks into it now, not for ever.
  const auto oldest = std::filesystem::file_time_type::clock::now() - kFailedSourceLife;
  std::filesystem::directory_iterator item(options.directory + "/failed", ignored), end;
  for (; !ignored && item != end; item.increment(ignored)) {
    std::error_code code;
    if (item->last_write_time(code) < oldest && !code) std::filesystem::remove(item->path(), code);
  }
}

void DiskCache::warn(const std::string &subject, std::string_view message) {
  if (options.log) options.log->warnOnce(subject, message);
}

std::optional<DiskCache::Hit> DiskCache::find(const std::string &key) {
  auto search = [&](const std::string &directory, bool bundle) -> std::optional<Hit> {
    EntryFile file = readEntryFile(directory, key, bundle, bundle ? -1 : options.touchInterval.count());
    std::string path = fmt::format("{}/{}{}", directory, key, kEntrySuffix);
    if (file.entry) return Hit{std::move(*file.entry), std::move(path), bundle};
    if (file.damage.empty()) return std::nullopt;
    if (bundle) {
      warn(path, fmt::format("{}: {}; this entry of a bundle is not used, export the bundle anew", path, file.damage));
      return std::nullopt;
    }
    warn(path, fmt::format("{}: {}; deleted, the kernel is compiled again", path, file.damage));
    // Another process may have put a good entry there meanwhile: remove only what was read.
    struct stat state;
    if (lstat(path.c_str(), &state) == 0 && state.st_ino == file.inode) {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    return std::nullopt;
  };
  for (const std::string &bundle : options.bundles)
    if (auto hit = search(bundle, true)) return hit;
  if (writable) return search(options.directory, false);
  return std::nullopt;
}

bool DiskCache::ensureDirectory() {
  struct stat state;
  std::string reason;
  if (!createPrivately(options.directory) || stat(options.directory.c_str(), &state) != 0)
    reason = fmt::format("cannot create {}: {}", options.directory, std::strerror(errno));
  else
    reason = refusal(options.directory, state);
  if (reason.empty()) return true;
  warn(options.directory, fmt::format("the cache folder is not used: {}; {}", reason, kWithoutDisk));
  return false;
}

std::string DiskCache::publish(const CacheEntry &entry) {
  if (!writable || !ensureDirectory()) return {};
  const std::string name = entry.key() + std::string(kEntrySuffix), head = encodeEntryHead(entry);
  const std::string_view parts[] = {head, {entry.payload.data(), entry.payload.size()}};
  if (Status status = writeFileAtomically(options.directory, name, parts, 0600); !status) {
    warn("publish " + options.directory,
         fmt::format("kernel {} could not be kept in the cache: {}; it is used all the same", entry.symbol,
                     status.error().message));
    return {};
  }
  if (options.maxBytes) evictEntries(options.directory, options.maxBytes, options.protectedAge.count());
  return options.directory + "/" + name;
}

void DiskCache::discard(const std::string &path, bool fromBundle, std::string_view reason) {
  warn(path, fmt::format("{}: {}; {}", path, reason,
                         fromBundle ? "this entry of a bundle is not used, export the bundle anew"
                                    : "deleted, the kernel is compiled again"));
  if (!fromBundle) unlink(path.c_str());
}

std::string DiskCache::failedDirectory() {
  if (!writable || !ensureDirectory()) return {};
  std::string path = options.directory + "/failed";
  return createPrivately(path) ? path : std::string();
}

std::vector<std::string> DiskCache::compilers(PayloadKind kind) {
  std::vector<std::string> found;
  auto scan = [&](const std::string &directory, bool bundle) {
    DIR *folder = opendir(directory.c_str());
    if (!folder) return;
    while (dirent *item = readdir(folder)) {
      std::string key;
      if (!isEntryName(item->d_name, &key)) continue;
      EntryFile file = readEntryFile(directory, key, bundle);
      if (!file.entry || file.entry->kind != kind) continue;
      if (std::ranges::find(found, file.entry->inputs.compiler) == found.end())
        found.push_back(file.entry->inputs.compiler);
    }
    closedir(folder);
  };
  for (const std::string &bundle : options.bundles)
    scan(bundle, true);
  if (writable) scan(options.directory, false);
  return found;
}

} // namespace tilewright
