#include "NpyHeader.h"
#include "tilewright/tensor/Npy.h"
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tilewright {
namespace {

/// A file being written under a name of its own. Removed unless published.
class TemporaryFile {
public:
  explicit TemporaryFile(const std::filesystem::path &target) : target(target) {}
  TemporaryFile(TemporaryFile &&other) noexcept
      : target(std::move(other.target)), temporary(std::exchange(other.temporary, {})),
        fd(std::exchange(other.fd, -1)) {}
  ~TemporaryFile() {
    if (fd >= 0) ::close(fd);
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }

  Status write(const NpyFile &file) {
    if (Status status = open(); !status) return status;
    const std::string header = npyHeaderFor(file);
    int64_t bytes = sizeInBytes(file.type);
    for (int64_t dim : file.shape)
      bytes *= dim;
    const int64_t total = static_cast<int64_t>(header.size()) + bytes;
    if (Status status = append(header.data(), static_cast<int64_t>(header.size()), total); !status) return status;
    if (Status status = append(static_cast<const char *>(file.data), bytes, total); !status) return status;
    // Some file systems say only here, or only at close, that the disk is full.
    if (::fsync(fd) != 0) return failed("cannot be written", total);
    if (::close(std::exchange(fd, -1)) != 0) return failed("cannot be written", total);
    return {};
  }

  Status publish() {
    if (::rename(temporary.c_str(), target.c_str()) != 0) return failed("cannot be put in place", 0);
    temporary.clear();
    return {};
  }

private:
  Status open() {
    struct stat info {};
    if (::stat(target.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
      return fail(Stage::Output, fmt::format("{}: expected a file to write, found a folder", target.string()));
    static std::atomic<unsigned> counter{0};
    do {
      temporary = target.parent_path() /
                  fmt::format(".{}.{}-{}.tmp", target.filename().string(), ::getpid(), counter.fetch_add(1));
      fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST); // left by a dead process that had this one's id
    if (fd >= 0) return {};
    const int code = errno;
    temporary.clear();
    if (code == ENOENT || code == ENOTDIR)
      return fail(Stage::Output, fmt::format("{}: its folder does not exist", target.string()));
    return failed("cannot be created", 0, code);
  }

  Status append(const char *data, int64_t count, int64_t total) {
    while (count > 0) {
      const ssize_t put = ::write(fd, data, static_cast<size_t>(count));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return failed("cannot be written", total);
      data += put;
      count -= put;
    }
    return {};
  }

  Status failed(std::string_view what, int64_t total, int code = errno) const {
    if (code == ENOSPC || code == EDQUOT)
      return fail(Stage::Output, fmt::format("{}: the disk is full: {} needed", target.string(), sizeText(total)),
                  "free some space or choose another folder; nothing was left behind");
    return fail(Stage::Output, fmt::format("{}: {}: {}", target.string(), what, std::strerror(code)));
  }

  std::filesystem::path target, temporary;
  int fd = -1;
};

/// Makes the renames themselves durable. Best effort: not every file system can sync a folder.
void syncFolder(const std::filesystem::path &folder) {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

} // namespace

Status writeNpy(std::span<const NpyFile> files) {
  std::vector<TemporaryFile> written;
  written.reserve(files.size());
  for (const NpyFile &file : files)
    if (Status status = written.emplace_back(file.path).write(file); !status) return status;
  for (TemporaryFile &file : written)
    if (Status status = file.publish(); !status) return status;
  for (const NpyFile &file : files)
    syncFolder(file.path.parent_path());
  return {};
}

Status writeNpy(const NpyFile &file) { return writeNpy(std::span(&file, 1)); }

} // namespace tilewright
