#include "tilewright/cuda/DynamicLibrary.h"
#include <algorithm>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <unistd.h>

namespace tilewright::cuda {
namespace {

std::string pathOf(void *handle, const std::string &fallback) {
  link_map *map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name) return map->l_name;
  return fallback;
}

} // namespace

std::vector<std::string> cudaLibraryDirectories(const std::string &libraryPath, const std::string &cudaHome) {
  std::vector<std::string> directories;
  auto add = [&](std::string directory) {
    if (!directory.empty() && std::ranges::find(directories, directory) == directories.end())
      directories.push_back(std::move(directory));
  };
  for (size_t begin = 0; begin < libraryPath.size();) {
    size_t end = std::min(libraryPath.find(':', begin), libraryPath.size());
    add(libraryPath.substr(begin, end - begin));
    begin = end + 1;
  }
  for (const std::string &root : {cudaHome, std::string("/usr/local/cuda"), std::string("/opt/cuda")})
    if (!root.empty())
      for (const char *sub : {"/lib64", "/lib", "/targets/x86_64-linux/lib", "/targets/sbsa-linux/lib"})
        add(root + sub);
  for (const char *system : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"})
    add(system);
  return directories;
}

std::string DynamicLibrary::locate(const LibrarySearch &search) {
  if (!search.overridePath.empty()) return search.overridePath;
  for (const std::string &name : search.names)
    for (const std::string &directory : search.directories)
      if (std::string path = directory + "/" + name; access(path.c_str(), R_OK) == 0) return path;
  return {};
}

Expected<DynamicLibrary> DynamicLibrary::open(const LibrarySearch &search) {
  std::vector<std::string> tried;
  std::string log;
  DynamicLibrary library;
  auto attempt = [&](const std::string &name, int flags) {
    library.handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL | flags);
    if (library.handle) {
      library.resolvedPath = pathOf(library.handle, name);
      return true;
    }
    const char *reason = dlerror();
    if (!(flags & RTLD_NOLOAD)) {
      tried.push_back(name);
      if (reason) log += std::string(reason) + "\n";
    }
    return false;
  };

  if (!search.overridePath.empty()) {
    if (attempt(search.overridePath, 0)) return library;
    return fail(
        Stage::Load,
        fmt::format("{} cannot be opened: {} names {}", search.what, search.overrideVariable, search.overridePath),
        fmt::format("correct {0} or unset it to have the library searched", search.overrideVariable), log);
  }
  for (const std::string &name : search.names)
    if (attempt(name, RTLD_NOLOAD)) return library;
  for (const std::string &name : search.names) {
    for (const std::string &directory : search.directories)
      if (std::string path = directory + "/" + name; access(path.c_str(), F_OK) == 0 && attempt(path, 0))
        return library;
    if (attempt(name, 0)) return library;
  }
  return fail(Stage::Load,
              fmt::format("{} was not found: tried {} in the loader's path and in {}", search.what,
                          fmt::join(tried, ", "), fmt::join(search.directories, ", ")),
              search.hint, log);
}

void *DynamicLibrary::symbol(const char *name) const { return dlsym(handle, name); }

} // namespace tilewright::cuda
