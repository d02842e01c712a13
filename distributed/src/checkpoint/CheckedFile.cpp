#include "CheckedFile.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <vector>

namespace tilewright::dist {

class Sha256 {
public:
  Sha256() { EVP_DigestInit_ex(context, EVP_sha256(), nullptr); }
  ~Sha256() { EVP_MD_CTX_free(context); }
  Sha256(const Sha256 &) = delete;
  Sha256 &operator=(const Sha256 &) = delete;

  void add(std::string_view bytes) { EVP_DigestUpdate(context, bytes.data(), bytes.size()); }
  std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_DigestFinal_ex(context, digest, &size);
    return fmt::format("{:02x}", fmt::join(digest, digest + size, ""));
  }

private:
  EVP_MD_CTX *context = EVP_MD_CTX_new();
};

CheckedFile::CheckedFile() : hash(std::make_unique<Sha256>()) {}
CheckedFile::CheckedFile(CheckedFile &&other) noexcept
    : folder(std::move(other.folder)), name(std::move(other.name)), file(std::exchange(other.file, -1)),
      written(other.written), wanted(other.wanted), hash(std::move(other.hash)) {}
CheckedFile::~CheckedFile() {
  if (file >= 0) close(file);
}

Expected<CheckedFile> CheckedFile::create(const std::string &folder, const std::string &name, int64_t bytes) {
  CheckedFile created;
  created.folder = folder;
  created.name = name;
  created.wanted = bytes;
  created.file = open((folder + "/" + name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (created.file < 0) {
    Status status = created.failed("created", errno);
    return propagate(status);
  }
  if (bytes > 0 && fallocate(created.file, 0, 0, bytes) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    Status status = created.failed("written", errno);
    return propagate(status);
  }
  return created;
}

Status CheckedFile::failed(const char *step, int code) const {
  std::string message = fmt::format("{}/{}: cannot be {}: {}", folder, name, step, std::strerror(code)), hint;
  if (code == ENOSPC || code == EDQUOT) {
    if (struct statvfs disk; statvfs(folder.c_str(), &disk) == 0)
      message += fmt::format("; {} bytes needed, {} free", wanted, uint64_t{disk.f_bavail} * disk.f_frsize);
    hint = "free some space, keep fewer checkpoints, or save to another disk";
  }
  return fail(Stage::Output, std::move(message), std::move(hint));
}

Status CheckedFile::write(std::string_view bytes) {
  hash->add(bytes);
  written += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t done = ::write(file, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return failed("written", errno);
    bytes.remove_prefix(static_cast<size_t>(done));
  }
  return {};
}

Expected<FileRecord> CheckedFile::finish() {
  int code = fsync(file) == 0 ? 0 : errno;
  // Some file systems report a full disk only here.
  if (close(std::exchange(file, -1)) != 0 && code == 0) code = errno;
  if (code) {
    Status status = failed("written", code);
    return propagate(status);
  }
  return FileRecord{name, written, hash->hex()};
}

Expected<std::string> sha256OfFile(const std::string &path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return fail(Stage::Input, fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  ssize_t got;
  int code = 0;
  while ((got = read(file, buffer.data(), buffer.size())) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      code = errno;
      break;
    }
    hash.add({buffer.data(), static_cast<size_t>(got)});
  }
  close(file);
  if (code) return fail(Stage::Input, fmt::format("{}: cannot be read: {}", path, std::strerror(code)));
  return hash.hex();
}

void syncFolder(const std::string &path) {
  if (const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); folder >= 0) {
    fsync(folder);
    close(folder);
  }
}

} // namespace tilewright::dist
