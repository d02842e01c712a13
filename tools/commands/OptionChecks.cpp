#include "OptionChecks.h"

#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <limits>

namespace tilewright::tool {

CLI::Validator wholeNumber() {
  return CLI::Validator(
      [](std::string &text) -> std::string {
        int64_t value = 0;
        auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (code == std::errc() && end == text.data() + text.size() && value >= 0) return {};
        return fmt::format("expected a whole number from 0 to {}, found '{}'", std::numeric_limits<int64_t>::max(),
                           text);
      },
      "");
}

CLI::Validator numberFrom(double low, double high) {
  return CLI::Validator(
      [low, high](std::string &text) -> std::string {
        double value = 0;
        auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
        // NaN is in no range.
        if (code == std::errc() && end == text.data() + text.size() && value >= low && value <= high) return {};
        return fmt::format("expected a number from {:g} to {:g}, found '{}'", low, high, text);
      },
      fmt::format("{:g} to {:g}", low, high));
}

CLI::Validator regularFile() {
  return CLI::Validator(
      [](std::string &path) -> std::string {
        std::error_code code;
        if (path.empty()) return "expected a file, found an empty text";
        const std::filesystem::file_status status = std::filesystem::status(path, code);
        if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return {};
        return fmt::format("{}: expected a file, found a {}", path,
                           std::filesystem::is_directory(status) ? "folder" : "device, socket or pipe");
      },
      "");
}

CLI::Validator byteSize() {
  return CLI::Validator(
      [](std::string &text) -> std::string {
        std::string number = text;
        bool good = false;
        try {
          good = CLI::AsSizeValue(false)(number).empty();
        } catch (const CLI::Error &) { // what it makes of an empty text or too large a number
        }
        if (!good) return fmt::format("expected a size such as 1000000, 512K or 25M, found '{}'", text);
        text = number;
        return {};
      },
      "");
}

Expected<ElementType> parseTrainingType(const char *option, const std::string &text) {
  if (text == "fp32") return ElementType::F32;
  if (text == "bf16") return ElementType::BF16;
  return fail(Stage::Input, fmt::format("{}: expected fp32 or bf16, found '{}'", option, text));
}

CLI::Validator notEmpty() {
  return CLI::Validator(
      [](std::string &text) -> std::string { return text.empty() ? "expected a value, found an empty text" : ""; }, "");
}

} // namespace tilewright::tool
