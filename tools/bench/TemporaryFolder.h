// A folder of this process's own, with everything in it gone when the object goes.
#pragma once

#include "tilewright/Error.h"
#include <filesystem>

namespace tilewright::bench {

class TemporaryFolder {
public:
  /// Below TMPDIR or /tmp, for its owner alone; `purpose` is part of its name. The error names the folder.
  static Expected<TemporaryFolder> make(std::string_view purpose);
  ~TemporaryFolder();
  TemporaryFolder(TemporaryFolder &&other) noexcept { place.swap(other.place); }
  TemporaryFolder &operator=(TemporaryFolder &&other) noexcept {
    place.swap(other.place);
    return *this;
  }

  const std::filesystem::path &path() const { return place; }

private:
  explicit TemporaryFolder(std::filesystem::path place) : place(std::move(place)) {}

  std::filesystem::path place;
};

} // namespace tilewright::bench
