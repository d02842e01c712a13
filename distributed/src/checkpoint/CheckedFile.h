// Files that are hashed as they are written, and are on the disk when they are finished.
#pragma once

#include "tilewright/Error.h"
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tilewright::dist {

struct FileRecord {
  std::string name; ///< Without folders.
  int64_t bytes = 0;
  std::string sha256; ///< 64 hex digits.
};

class Sha256;

class CheckedFile {
public:
  /// Creates `folder`/`name`, which must not exist, and reserves `bytes` where the file system can, so that a full disk
  /// shows at once.
  static Expected<CheckedFile> create(const std::string &folder, const std::string &name, int64_t bytes);
  CheckedFile(CheckedFile &&other) noexcept;
  CheckedFile &operator=(CheckedFile &&) = delete;
  ~CheckedFile();

  Status write(std::string_view bytes);
  /// Syncs and closes.
  Expected<FileRecord> finish();

private:
  CheckedFile();
  Status failed(const char *step, int code) const;

  std::string folder, name;
  int file = -1;
  int64_t written = 0, wanted = 0;
  std::unique_ptr<Sha256> hash;
};

/// 64 hex digits of a file's content.
Expected<std::string> sha256OfFile(const std::string &path);

/// What a folder holds is on the disk after this. Where the file system cannot, nothing happens.
void syncFolder(const std::string &path);

} // namespace tilewright::dist
