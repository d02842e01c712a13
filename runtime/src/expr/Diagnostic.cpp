#include "Diagnostic.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright::expr {

namespace {

/// Longest piece of an expression that a message shows, in characters.
constexpr size_t kExcerptLength = 96;

} // namespace

tl::unexpected<Error> failAt(std::string_view what, std::string_view text, size_t position, std::string_view message,
                             std::string hint) {
  position = std::min(position, text.size());
  size_t begin = position > kExcerptLength / 2 && text.size() > kExcerptLength ? position - kExcerptLength / 2 : 0;
  std::string excerpt(text.substr(begin, kExcerptLength));
  // A byte a column, and nothing that a terminal or a JSON writer could choke on.
  for (char &c : excerpt) {
    if (c == '\t' || c == '\n' || c == '\r') c = ' ';
    if (c < ' ' || c > '~') c = '?';
  }
  std::string left = begin > 0 ? "..." : "", right = begin + kExcerptLength < text.size() ? "..." : "";
  size_t caret = left.size() + position - begin;
  return fail(Stage::Input,
              fmt::format("{}: {} at column {}\n  {}{}{}\n  {:>{}}", what, message, position + 1, left, excerpt, right,
                          '^', caret + 1),
              std::move(hint));
}

} // namespace tilewright::expr
