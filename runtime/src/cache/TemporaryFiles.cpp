#include "tilewright/cache/TemporaryFiles.h"
#include "tilewright/plan/KernelPlan.h"
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tilewright {
namespace {

constexpr std::string_view kPrefix = ".tmp-";
constexpr time_t kStaleSeconds = 3600;

/// Process ids mean something only within one boot of one machine and one process namespace (container): 8 hex digits
/// that tell these apart. A shared network folder sees files of many.
const std::string &processSpace() {
  static const std::string space = [] {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    char pidNamespace[64] = {};
    if (readlink("/proc/self/ns/pid", pidNamespace, sizeof(pidNamespace) - 1) < 0) pidNamespace[0] = 0;
    return sha256Hex(boot + pidNamespace).substr(0, 8);
  }();
  return space;
}

/// ".tmp-<process space>-<process id>-<random>"
std::string temporaryName() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) random = reinterpret_cast<uintptr_t>(&random);
  return fmt::format("{}{}-{}-{:016x}", kPrefix, processSpace(), getpid(), random);
}

bool writeAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

} // namespace

Status writeFileAtomically(const std::string &directory, const std::string &name,
                           std::span<const std::string_view> parts, unsigned mode) {
  const std::string target = directory + "/" + name, temporary = directory + "/" + temporaryName();
  auto failed = [&](const char *step) {
    int code = errno;
    unlink(temporary.c_str());
    return fail(Stage::Cache, fmt::format("cannot {} {}: {}", step, target, std::strerror(code)));
  };
  int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (file < 0) return failed("create");
  bool written = fchmod(file, mode) == 0;
  for (std::string_view part : parts)
    written = written && writeAll(file, part);
  written = written && fsync(file) == 0;
  int code = errno;
  // Some file systems report a full disk only here.
  bool closed = close(file) == 0;
  if (!written) errno = code;
  if (!written || !closed) return failed("write");

  if (rename(temporary.c_str(), target.c_str()) != 0) {
    if (errno != EISDIR && errno != ENOTEMPTY && errno != EEXIST) return failed("publish");
    std::error_code ignored;
    std::filesystem::remove_all(target, ignored);
    if (rename(temporary.c_str(), target.c_str()) != 0) return failed("publish");
  }
  // Without this a power cut could undo the rename. Failing it costs only the entry, which readers verify anyway.
  if (int folder = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); folder >= 0) {
    fsync(folder);
    close(folder);
  }
  return {};
}

bool isTemporaryName(std::string_view fileName) { return fileName.starts_with(kPrefix); }

bool isStaleTemporary(const std::string &directory, const std::string &fileName) {
  std::string ours = fmt::format("{}{}-", kPrefix, processSpace());
  bool writerGone = false;
  if (fileName.starts_with(ours)) {
    pid_t process = 0;
    auto [end, code] = std::from_chars(fileName.data() + ours.size(), fileName.data() + fileName.size(), process);
    writerGone = code == std::errc() && process > 0 && kill(process, 0) != 0 && errno == ESRCH;
  }
  // After the writer, not before: one that has just finished has renamed its file.
  struct stat state;
  if (lstat((directory + "/" + fileName).c_str(), &state) != 0) return false;
  return writerGone || state.st_mtime < time(nullptr) - kStaleSeconds;
}

} // namespace tilewright
