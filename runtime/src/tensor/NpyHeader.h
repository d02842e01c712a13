// The header of a .npy file: a preamble (magic, version, length) and a Python dict literal with exactly the keys
// descr, fortran_order and shape (NEP 1). Parsed strictly: what NumPy would not write is refused.
#pragma once

#include "tilewright/tensor/Npy.h"

namespace tilewright {

struct NpyPreamble {
  /// Bytes that hold the preamble of any version.
  static constexpr int64_t kMaxSize = 12;
  /// NumPy's own headers stay below 64 KiB but for structured types, which are not read.
  static constexpr int64_t kMaxHeader = int64_t{1} << 20;

  int64_t headerOffset = 0, headerLength = 0;
  int64_t dataOffset() const { return headerOffset + headerLength; }
};

struct NpyHeader {
  NpyType type = NpyType::F32;
  bool swapBytes = false;
  bool fortranOrder = false;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int64_t dataBytes = 0; ///< elements times their size, known not to overflow
};

/// `start` is the file's first min(size, kMaxSize) bytes.
Expected<NpyPreamble> parseNpyPreamble(std::span<const char> start, int64_t fileSize, std::string_view name);
/// `text` is the dict literal with its padding.
Expected<NpyHeader> parseNpyHeader(std::string_view text, std::string_view name);
/// The preamble and header of a file, padded so that the data starts at a multiple of 64 bytes.
std::string npyHeaderFor(const NpyFile &file);

} // namespace tilewright
