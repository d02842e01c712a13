// Host memory for tensors and tables: 64-byte aligned, with readable slack after the end so that vector loads may
// run past the last element. The slack holds NaN bit patterns: what uses it by mistake shows.
#pragma once

#include "tilewright/Error.h"
#include <cstdint>
#include <memory>
#include <string_view>

namespace tilewright {

class AlignedBuffer {
public:
  static constexpr int64_t kAlignment = 64;
  /// Readable bytes after the end, at least.
  static constexpr int64_t kSlack = 64;

  AlignedBuffer() = default;

  /// Zeroed memory; pages are touched on first use only. `what` names the purpose in the error, which states the size
  /// needed and, where the machine says it, the memory available.
  static Expected<AlignedBuffer> zeros(int64_t bytes, std::string_view what);

  char *data() { return reinterpret_cast<char *>(aligned()); }
  const char *data() const { return reinterpret_cast<const char *>(aligned()); }
  int64_t size() const { return bytes; }
  template <class T> T *as() { return reinterpret_cast<T *>(aligned()); }
  template <class T> const T *as() const { return reinterpret_cast<const T *>(aligned()); }

private:
  struct Free {
    void operator()(void *memory) const;
  };
  uintptr_t aligned() const {
    return (reinterpret_cast<uintptr_t>(memory.get()) + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::unique_ptr<void, Free> memory;
  int64_t bytes = 0;
};

/// "1536 bytes (1.5 KiB)": sizes as errors state them.
std::string sizeText(int64_t bytes);

} // namespace tilewright
