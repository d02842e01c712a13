// A shared library that is opened by name when it is first needed, so that one binary starts on every machine.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/Export.h"
#include <string>
#include <vector>

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

/// Where to look for a library and what to tell a person when it is not there.
struct LibrarySearch {
  std::string what;                     ///< "the CUDA driver"
  std::string overridePath;             ///< When not empty, this file and no other.
  std::string overrideVariable;         ///< The environment variable that sets overridePath.
  std::vector<std::string> names;       ///< In order of preference: "libnvrtc.so.13", "libnvrtc.so.12".
  std::vector<std::string> directories; ///< Searched in this order, before the loader's own search.
  std::string hint;                     ///< How to get it.
};

/// The directories of LD_LIBRARY_PATH (colon separated), of a CUDA toolkit root, and of usual installations.
std::vector<std::string> cudaLibraryDirectories(const std::string &libraryPath, const std::string &cudaHome);

class DynamicLibrary {
public:
  /// Where open() would find the library, without opening it; empty when only the loader's own search can tell.
  static std::string locate(const LibrarySearch &search);

  /// A library of one of the names that this process already holds is taken first, so that a host's choice wins.
  /// The error lists everything that was tried, in order, with the loader's reasons as its log.
  static Expected<DynamicLibrary> open(const LibrarySearch &search);

  /// Null when the library has no such symbol.
  void *symbol(const char *name) const;
  /// The file that was opened, as the loader resolved it.
  const std::string &path() const { return resolvedPath; }

private:
  // Never closed: CUDA's libraries register exit handlers and thread-local destructors that must stay mapped.
  void *handle = nullptr;
  std::string resolvedPath;
};

} // namespace cuda
} // namespace tilewright
