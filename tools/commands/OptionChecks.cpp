#include "OptionChecks.h"

#include <charconv>
#include <fmt/format.h>
#include <limits>

namespace tilewright::tool {

CLI::Validator wholeNumber() {
  return CLI::Validator(
      [](std::string &text) -> std::string {
        int64_t value = 0;
        auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (code == std::errc() && end == text.data() + text.size() && value >= 0) return {};
        return fmt::format("expected a whole number from 0 to {}, found '{}'", std::numeric_limits<int64_t>::max(), text);
      },
      "");
}

CLI::Validator notEmpty() {
  return CLI::Validator(
      [](std::string &text) -> std::string { return text.empty() ? "expected a value, found an empty text" : ""; }, "");
}

} // namespace tilewright::tool
