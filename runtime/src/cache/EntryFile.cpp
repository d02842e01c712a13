#include "tilewright/cache/EntryFile.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tilewright {
namespace {

/// Far above any kernel: a guard against reading something else's gigabytes.
constexpr off_t kLargestEntry = off_t{256} << 20;

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

/// Why a file's owner, kind or permissions forbid loading it; empty when they do not.
std::string refusal(const struct stat &state, bool bundle) {
  if (S_ISDIR(state.st_mode)) return "a folder stands in its place";
  if (!S_ISREG(state.st_mode)) return "not a regular file";
  if (state.st_uid != geteuid() && !(bundle && state.st_uid == 0))
    return fmt::format("it belongs to user {}, expected {}", state.st_uid, geteuid());
  if (state.st_mode & (S_IWGRP | S_IWOTH))
    return fmt::format("it is writable by other users (mode {:03o})", state.st_mode & 0777);
  // Root may read every file, but one that its owner may not read was not left so by the cache.
  if (state.st_uid == geteuid() && !(state.st_mode & S_IRUSR))
    return fmt::format("it is unreadable (mode {:03o})", state.st_mode & 0777);
  return {};
}

} // namespace

EntryFile readEntryFile(const std::string &directory, const std::string &key, bool bundle, int64_t touchAfter) {
  EntryFile result;
  const std::string path = fmt::format("{}/{}{}", directory, key, kEntrySuffix);
  // Not blocking: a pipe in the entry's place must not stop the process.
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  struct stat state;
  if (file.number < 0) {
    int code = errno;
    if (code == ENOENT || code == ENOTDIR || lstat(path.c_str(), &state) != 0) return result;
    result.inode = state.st_ino;
    result.foreign = true;
    result.damage = code == ELOOP ? "a symbolic link stands in its place"
                                  : fmt::format("it cannot be opened: {}", std::strerror(code));
    return result;
  }
  if (fstat(file.number, &state) != 0) return result;
  result.inode = state.st_ino;
  result.lastUsed = state.st_mtime;
  result.damage = refusal(state, bundle);
  if (!result.damage.empty()) {
    result.foreign = true;
    return result;
  }
  if (state.st_size > kLargestEntry) {
    result.damage = fmt::format("{} bytes are no kernel", state.st_size);
    return result;
  }

  std::vector<char> bytes(static_cast<size_t>(state.st_size));
  size_t filled = 0;
  while (filled < bytes.size()) {
    ssize_t got = read(file.number, bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) result.damage = fmt::format("it cannot be read: {}", std::strerror(errno));
    if (got <= 0) break;
    filled += static_cast<size_t>(got);
  }
  if (!result.damage.empty()) return result;
  bytes.resize(filled);

  auto entry = decodeEntry(bytes, key);
  if (!entry) {
    result.damage = entry.error().message;
    return result;
  }
  result.entry = std::move(*entry);
  // Our own touch of the modification time: access times are off or coarse on many mounts.
  if (touchAfter >= 0 && state.st_mtime <= time(nullptr) - touchAfter) futimens(file.number, nullptr);
  return result;
}

Evicted evictEntries(const std::string &directory, uint64_t maxBytes, int64_t protectedSeconds) {
  struct Candidate {
    timespec lastUsed;
    uint64_t bytes;
    std::string path;
  };
  std::vector<Candidate> candidates;
  uint64_t total = 0;
  Evicted evicted;
  DIR *folder = opendir(directory.c_str());
  if (!folder) return evicted;
  while (dirent *item = readdir(folder)) {
    if (!isEntryName(item->d_name)) continue;
    struct stat state;
    std::string path = directory + "/" + item->d_name;
    if (lstat(path.c_str(), &state) != 0 || !S_ISREG(state.st_mode)) continue;
    total += static_cast<uint64_t>(state.st_size);
    candidates.push_back({state.st_mtim, static_cast<uint64_t>(state.st_size), std::move(path)});
  }
  closedir(folder);
  if (total <= maxBytes) return evicted;

  std::ranges::sort(candidates, [](const Candidate &a, const Candidate &b) {
    return std::pair(a.lastUsed.tv_sec, a.lastUsed.tv_nsec) < std::pair(b.lastUsed.tv_sec, b.lastUsed.tv_nsec);
  });
  const time_t youngest = time(nullptr) - protectedSeconds;
  for (const Candidate &candidate : candidates) {
    if (total <= maxBytes) break;
    if (protectedSeconds > 0 && candidate.lastUsed.tv_sec > youngest) break;
    if (unlink(candidate.path.c_str()) != 0) continue;
    total -= candidate.bytes;
    evicted.bytes += candidate.bytes;
    ++evicted.entries;
  }
  return evicted;
}

} // namespace tilewright
