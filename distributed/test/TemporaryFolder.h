// A folder of a test's own, removed with the test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

struct TemporaryFolder {
  std::string path = (std::filesystem::temp_directory_path() / "tilewright-test-XXXXXX").string();
  TemporaryFolder() {
    if (!mkdtemp(path.data())) std::abort();
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder &) = delete;
  TemporaryFolder &operator=(const TemporaryFolder &) = delete;
};
