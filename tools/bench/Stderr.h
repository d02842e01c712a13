// Text for people on stderr. No work depends on its arrival: a closed stderr or a full log disk ends nothing.
#pragma once

#include <cstdio>
#include <fmt/format.h>
#include <string>

namespace tilewright {

template <class... Args> void toStderr(fmt::format_string<Args...> format, Args &&...args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

} // namespace tilewright
