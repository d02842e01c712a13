// Text of an expression -> tokens.
#pragma once

#include "tilewright/Error.h"
#include <cstdint>
#include <string_view>
#include <vector>

namespace tilewright::expr {

enum class TokenKind {
  End,
  Name,
  Int,
  Float,
  LeftParen,
  RightParen,
  LeftBracket,
  RightBracket,
  Comma,
  Plus,
  Minus,
  Star,
  Slash,
  SlashSlash,
  Percent,
  Lt,
  Le,
  Gt,
  Ge,
  EqEq,
  NotEq,
  AndAnd,
  OrOr,
  Not, // `and`, `or` and `not` as well
};

struct Token {
  TokenKind kind = TokenKind::End;
  std::string_view text; ///< Points into the source; empty at the end
  size_t position = 0;   ///< Offset of the first character in the source
  int64_t intValue = 0;
  double floatValue = 0;
};

/// Longest text that is read, in characters, so that a hostile text can neither exhaust memory nor (with the parser's
/// limit on nesting) the stack.
inline constexpr size_t kMaxExpressionLength = 4096;

/// The last token is End. `what` ("mask", "score") starts the messages.
Expected<std::vector<Token>> tokenize(std::string_view what, std::string_view text);

/// "'<='" or "the end of the text": how messages name a token.
std::string describe(const Token &token);

} // namespace tilewright::expr
