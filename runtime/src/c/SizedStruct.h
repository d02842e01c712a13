// Structs of the C interfaces begin with their size, so that a caller may know fewer fields than the library.
#pragma once

#include "tilewright/Error.h"
#include <cstring>
#include <fmt/format.h>

namespace tilewright::c {

/// Refuses a struct of a size that no version had. Null is fine.
template <class T> Status checkSize(const char *what, const T *given) {
  if (!given || (given->struct_size >= sizeof(size_t) && given->struct_size <= sizeof(T))) return {};
  return fail(Stage::Input,
              fmt::format("{}.struct_size: expected {} or an older version's smaller one, found {}", what, sizeof(T),
                          given->struct_size),
              "TW_INIT() sets it");
}

/// Puts what is given over the defaults in `options`.
template <class T> Status take(const char *what, const T *given, T &options) {
  if (Status s = checkSize(what, given); !s) return s;
  if (given) std::memcpy(static_cast<void *>(&options), given, given->struct_size);
  return {};
}

} // namespace tilewright::c
