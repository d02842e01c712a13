#include "TemporaryFolder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>

namespace tilewright::bench {

Expected<TemporaryFolder> TemporaryFolder::make(std::string_view purpose) {
  std::error_code error;
  std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) parent = "/tmp";
  // mkdtemp puts six characters of its choice in place of the X.
  std::string name = (parent / fmt::format("tilewright-{}-XXXXXX", purpose)).string();
  if (mkdtemp(name.data())) return TemporaryFolder(name);
  return fail(Stage::Output, fmt::format("cannot make the temporary folder {}: {}", name, std::strerror(errno)),
              "let TMPDIR name a folder that can be written");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!place.empty()) std::filesystem::remove_all(place, ignored);
}

} // namespace tilewright::bench
