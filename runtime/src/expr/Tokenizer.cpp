#include "Diagnostic.h"
#include "Token.h"
#include <charconv>
#include <fmt/format.h>
#include <limits>

namespace tilewright::expr {

namespace {

// The C library's classification depends on the locale; the grammar does not.
bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool isNamePart(char c) { return isNameStart(c) || isDigit(c); }
bool isSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

struct Symbol {
  std::string_view text;
  TokenKind kind;
};

/// Longer symbols come first, so that the first match is the longest.
constexpr Symbol kSymbols[] = {
    {"//", TokenKind::SlashSlash}, {"<=", TokenKind::Le},          {">=", TokenKind::Ge},
    {"==", TokenKind::EqEq},       {"!=", TokenKind::NotEq},       {"&&", TokenKind::AndAnd},
    {"||", TokenKind::OrOr},       {"(", TokenKind::LeftParen},    {")", TokenKind::RightParen},
    {"[", TokenKind::LeftBracket}, {"]", TokenKind::RightBracket}, {",", TokenKind::Comma},
    {"+", TokenKind::Plus},        {"-", TokenKind::Minus},        {"*", TokenKind::Star},
    {"/", TokenKind::Slash},       {"%", TokenKind::Percent},      {"<", TokenKind::Lt},
    {">", TokenKind::Gt},          {"!", TokenKind::Not},
};

class Tokenizer {
public:
  Tokenizer(std::string_view what, std::string_view text) : what(what), text(text) {}

  Expected<std::vector<Token>> run() {
    if (text.size() > kMaxExpressionLength)
      return fail(Stage::Input, fmt::format("{}: the expression has {} characters; at most {} are accepted", what,
                                            text.size(), kMaxExpressionLength));
    std::vector<Token> tokens;
    for (;;) {
      while (position < text.size() && isSpace(text[position]))
        ++position;
      auto token = next();
      if (!token) return propagate(token);
      tokens.push_back(*token);
      if (token->kind == TokenKind::End) return tokens;
    }
  }

private:
  Expected<Token> next() {
    if (position == text.size()) return take(TokenKind::End, 0);
    char c = text[position];
    if (isDigit(c) || (c == '.' && position + 1 < text.size() && isDigit(text[position + 1]))) return number();
    if (isNameStart(c)) return name();
    for (const Symbol &symbol : kSymbols)
      if (text.substr(position).starts_with(symbol.text)) return take(symbol.kind, symbol.text.size());
    return unexpectedCharacter();
  }

  Token take(TokenKind kind, size_t length) {
    Token token{kind, text.substr(position, length), position};
    position += length;
    return token;
  }

  Token name() {
    size_t length = 1;
    while (position + length < text.size() && isNamePart(text[position + length]))
      ++length;
    std::string_view word = text.substr(position, length);
    if (word == "and") return take(TokenKind::AndAnd, length);
    if (word == "or") return take(TokenKind::OrOr, length);
    if (word == "not") return take(TokenKind::Not, length);
    return take(TokenKind::Name, length);
  }

  size_t digitsFrom(size_t at) const {
    while (at < text.size() && isDigit(text[at]))
      ++at;
    return at;
  }

  Expected<Token> number() {
    size_t start = position, end = digitsFrom(start);
    bool isFloat = false;
    if (end < text.size() && text[end] == '.') {
      isFloat = true;
      end = digitsFrom(end + 1);
    }
    if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
      size_t exponentEnd = digitsFrom(digits);
      if (exponentEnd == digits) return failAt(what, text, start, "this number's exponent has no digits");
      isFloat = true;
      end = exponentEnd;
    }
    if (end < text.size() && isNamePart(text[end]))
      return failAt(what, text, end, fmt::format("unexpected '{}' after a number", text[end]),
                    "a product needs its sign: 2 * q");
    Token token = take(isFloat ? TokenKind::Float : TokenKind::Int, end - start);
    const char *first = token.text.data(), *last = first + token.text.size();
    if (!isFloat) {
      if (std::from_chars(first, last, token.intValue).ec != std::errc())
        return failAt(what, text, start, fmt::format("an integer may be at most {}", INT64_MAX),
                      "write it with a decimal point to make it a float");
      return token;
    }
    bool isRepresentable = std::from_chars(first, last, token.floatValue).ec == std::errc();
    if (!isRepresentable || token.floatValue > std::numeric_limits<float>::max())
      return failAt(what, text, start,
                    fmt::format("numbers are computed in fp32: a float may be at most {}{}",
                                std::numeric_limits<float>::max(),
                                isRepresentable ? "" : ", and must be 0 or at least about 1e-308"));
    return token;
  }

  tl::unexpected<Error> unexpectedCharacter() {
    unsigned char c = static_cast<unsigned char>(text[position]);
    switch (c) {
    case '=':
      return failAt(what, text, position, "unexpected '='", "write == to compare");
    case '&':
      return failAt(what, text, position, "unexpected '&'", "write && or and");
    case '|':
      return failAt(what, text, position, "unexpected '|'", "write || or or; abs(x) for an absolute value");
    case '^':
      return failAt(what, text, position, "unexpected '^'", "there is no power operator: write x * x");
    }
    if (c >= ' ' && c <= '~') return failAt(what, text, position, fmt::format("unexpected '{}'", text[position]));
    return failAt(what, text, position, fmt::format("unexpected byte 0x{:02x}", c),
                  "expressions are plain ASCII: write <= for the sign with one character, and so on");
  }

  std::string_view what, text;
  size_t position = 0;
};

} // namespace

Expected<std::vector<Token>> tokenize(std::string_view what, std::string_view text) {
  return Tokenizer(what, text).run();
}

std::string describe(const Token &token) {
  return token.kind == TokenKind::End ? "the end of the text" : fmt::format("'{}'", token.text);
}

} // namespace tilewright::expr
