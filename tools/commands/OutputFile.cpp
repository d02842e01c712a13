#include "OutputFile.h"
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>

namespace tilewright::tool {

Status checkWritable(const char *option, const std::string &path) {
  if (path.empty()) return {};
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return fail(Stage::Output, fmt::format("{} {}: expected a file to write, found a folder", option, path));
  if (!std::filesystem::is_directory(folder, error) || access(folder.c_str(), W_OK) != 0)
    return fail(Stage::Output,
                fmt::format("{} {}: the folder {} does not exist or cannot be written", option, path, folder.string()));
  return {};
}

Status writeText(const std::string &path, const std::string &text) {
  // A device, a pipe or a link stays what it is; a file is replaced whole.
  std::error_code error;
  const std::filesystem::file_status target = std::filesystem::symlink_status(path, error);
  const bool inPlace = std::filesystem::exists(target) && !std::filesystem::is_regular_file(target);
  const std::string part = inPlace ? path : path + ".part";
  std::ofstream file(part, std::ios::binary);
  file << text;
  file.close();
  if (!file) return fail(Stage::Output, fmt::format("cannot write {}: {}", part, std::strerror(errno)));
  if (inPlace) return {};
  std::filesystem::rename(part, path, error);
  if (error) return fail(Stage::Output, fmt::format("cannot write {}: {}", path, error.message()));
  return {};
}

std::string localTime() {
  char text[32];
  std::time_t time = std::time(nullptr);
  std::tm local = {};
  localtime_r(&time, &local);
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

} // namespace tilewright::tool
