// Every environment variable Tilewright reads, in one table. It is read once, when a Context is created; options given
// through the API win over it.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/Export.h"
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright TILEWRIGHT_PUBLIC {

enum class KnobType {
  Path,
  PathList, ///< Separated by colons.
  Bytes,    ///< A number, optionally with a suffix K, M, G or T (powers of 1024).
  Count,    ///< A positive integer.
  Flag,     ///< 1, true, yes, on or 0, false, no, off.
  Text,     ///< Anything; whoever uses it checks it.
};

std::string_view toString(KnobType type);

struct Knob {
  std::string_view name; ///< "TILEWRIGHT_..."
  KnobType type;
  std::string_view defaultText;
  std::string_view help; ///< One line.
};

std::span<const Knob> environmentKnobs();
/// The table as aligned text, one knob a line: what help pages show.
std::string environmentHelp();

struct Environment {
  std::string cacheDir;                       ///< TILEWRIGHT_CACHE_DIR
  uint64_t cacheMaxBytes = uint64_t{2} << 30; ///< TILEWRIGHT_CACHE_MAX_BYTES; 0 is unlimited.
  std::vector<std::string> bundles;           ///< TILEWRIGHT_BUNDLES
  std::string nvrtc;                          ///< TILEWRIGHT_NVRTC
  std::string cudaDriver;                     ///< TILEWRIGHT_CUDA_DRIVER
  std::string nccl;                           ///< TILEWRIGHT_NCCL
  std::string cublasLt;                       ///< TILEWRIGHT_CUBLASLT
  std::string dumpDir;                        ///< TILEWRIGHT_DUMP_DIR
  bool noCompile = false;                     ///< TILEWRIGHT_NO_COMPILE
  std::string record;                         ///< TILEWRIGHT_RECORD
  bool tuned = true;                          ///< TILEWRIGHT_TUNED
  int threads = 0;                            ///< TILEWRIGHT_THREADS; 0 is one a hardware thread.

  // Not ours, but they decide where things are found.
  std::string home;         ///< HOME
  std::string xdgCacheHome; ///< XDG_CACHE_HOME
  std::string cudaHome;     ///< CUDA_HOME, else CUDA_PATH
  std::string libraryPath;  ///< LD_LIBRARY_PATH

  /// TILEWRIGHT_* variables that are not in the table: most likely typing errors, worth a warning.
  std::vector<std::string> unknown;

  /// From "NAME=value" strings. An empty value counts as not set. A bad value is an error that names the variable,
  /// the value and what is accepted.
  static Expected<Environment> parse(std::span<const std::string_view> entries);
  static Expected<Environment> ofProcess();

  /// TILEWRIGHT_CACHE_DIR, else $XDG_CACHE_HOME/tilewright, else $HOME/.cache/tilewright; empty when none is set.
  std::string cacheDirectory() const;
};

} // namespace tilewright
