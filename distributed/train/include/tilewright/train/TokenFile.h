// A file of tokens: text, whose bytes are the tokens, or little-endian uint16 numbers. Read piece by piece, not mapped:
// a file that shrinks meanwhile is an error, not a signal.
#pragma once

#include "tilewright/Error.h"
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tilewright::train {

enum class TokenFormat { Text, Uint16 };
std::string_view toString(TokenFormat format); ///< "text", "uint16"
/// "text", "uint16", or "auto": uint16 for files called *.bin, *.u16 and *.tokens, else text.
Expected<TokenFormat> tokenFormat(std::string_view name, const std::string &path);
/// What the vocabulary is unless it is given: 256 for text, whose tokens are bytes, else 10000.
constexpr int64_t defaultVocabulary(TokenFormat format) { return format == TokenFormat::Text ? 256 : 10000; }

/// Reads may come from several threads at once.
class TokenFile {
public:
  /// Errors: a file that cannot be read, that is empty, or whose size is no number of tokens.
  static Expected<TokenFile> open(const std::string &path, TokenFormat format, int64_t vocabulary);

  const std::string &path() const { return name; }
  TokenFormat format() const { return kind; }
  int64_t tokens() const { return count; }

  /// Tokens [begin, begin + to.size()). Errors name the file, and the offset and value of a token outside the
  /// vocabulary, or how much of a file that has changed is left.
  Status read(int64_t begin, std::span<int32_t> to) const;
  /// Reads everything, so that a bad token is found before training and not after days.
  Status verify() const;

private:
  struct Descriptor;
  TokenFile() = default;

  std::string name;
  TokenFormat kind = TokenFormat::Text;
  int64_t vocabulary = 0, count = 0;
  std::shared_ptr<const Descriptor> file;
};

} // namespace tilewright::train
