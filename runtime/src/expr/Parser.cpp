#include "tilewright/expr/Parser.h"
#include "Diagnostic.h"
#include "Token.h"
#include "TypeRules.h"
#include "Vocabulary.h"
#include <fmt/format.h>
#include <optional>

namespace tilewright::expr {

namespace {

/// Deepest nesting of parentheses, calls and signs: bounds the parser's recursion.
constexpr int kMaxDepth = 100;

class Parser {
public:
  Parser(std::string_view what, std::string_view text, const std::vector<TableSpec> &tables, bool allowS)
      : what(what), text(text), tables(tables), allowS(allowS) {}

  Expected<ExprPtr> run() {
    auto tokenized = tokenize(what, text);
    if (!tokenized) return propagate(tokenized);
    tokens = std::move(*tokenized);
    if (peek().kind == TokenKind::End)
      return fail(Stage::Input, fmt::format("{}: expected an expression, found an empty text", what));
    auto expr = parseOr();
    if (!expr) return expr;
    if (peek().kind != TokenKind::End) return unexpected("an operator or the end of the text");
    return expr;
  }

private:
  using Result = Expected<ExprPtr>;

  const Token &peek() const { return tokens[next]; }
  const Token &advance() { return tokens[next++]; }
  bool accept(TokenKind kind) {
    if (peek().kind != kind) return false;
    ++next;
    return true;
  }

  tl::unexpected<Error> unexpected(std::string_view expectation, std::string hint = {}) const {
    return failAt(what, text, peek().position, fmt::format("expected {}, found {}", expectation, describe(peek())),
                  std::move(hint));
  }

  Result typed(Op op, std::vector<ExprPtr> args, size_t position) const {
    auto made = makeNode(op, std::move(args), static_cast<int>(position));
    if (made) return std::move(*made);
    return failAt(what, text, made.error().position, made.error().message, made.error().hint);
  }

  /// Left-associative chain of binary operators; `parseOperand` reads the next tighter level.
  template <class OpOf> Result parseChain(Result (Parser::*parseOperand)(), OpOf opOf) {
    Result left = (this->*parseOperand)();
    while (left) {
      std::optional<Op> op = opOf(peek().kind);
      if (!op) break;
      size_t position = advance().position;
      Result right = (this->*parseOperand)();
      if (!right) return right;
      left = typed(*op, {std::move(*left), std::move(*right)}, position);
    }
    return left;
  }

  Result parseOr() {
    return parseChain(&Parser::parseAnd, [](TokenKind kind) -> std::optional<Op> {
      return kind == TokenKind::OrOr ? std::optional(Op::Or) : std::nullopt;
    });
  }

  Result parseAnd() {
    return parseChain(&Parser::parseNot, [](TokenKind kind) -> std::optional<Op> {
      return kind == TokenKind::AndAnd ? std::optional(Op::And) : std::nullopt;
    });
  }

  Result parseNot() {
    if (peek().kind != TokenKind::Not) return parseComparison();
    return nested([this]() -> Result {
      size_t position = advance().position;
      Result operand = parseNot();
      if (!operand) return operand;
      return typed(Op::Not, {std::move(*operand)}, position);
    });
  }

  static std::optional<Op> comparisonOf(TokenKind kind) {
    switch (kind) {
    case TokenKind::Lt:
      return Op::Lt;
    case TokenKind::Le:
      return Op::Le;
    case TokenKind::Gt:
      return Op::Gt;
    case TokenKind::Ge:
      return Op::Ge;
    case TokenKind::EqEq:
      return Op::Eq;
    case TokenKind::NotEq:
      return Op::Ne;
    default:
      return std::nullopt;
    }
  }

  Result parseComparison() {
    Result left = parseSum();
    if (!left) return left;
    std::optional<Op> op = comparisonOf(peek().kind);
    if (!op) return left;
    size_t position = advance().position;
    Result right = parseSum();
    if (!right) return right;
    if (comparisonOf(peek().kind))
      return failAt(what, text, peek().position, "comparisons do not chain", "write a < b && b < c");
    return typed(*op, {std::move(*left), std::move(*right)}, position);
  }

  Result parseSum() {
    return parseChain(&Parser::parseTerm, [](TokenKind kind) -> std::optional<Op> {
      if (kind == TokenKind::Plus) return Op::Add;
      if (kind == TokenKind::Minus) return Op::Sub;
      return std::nullopt;
    });
  }

  Result parseTerm() {
    return parseChain(&Parser::parseUnary, [](TokenKind kind) -> std::optional<Op> {
      switch (kind) {
      case TokenKind::Star:
        return Op::Mul;
      case TokenKind::Slash:
        return Op::Div;
      case TokenKind::SlashSlash:
        return Op::FloorDiv;
      case TokenKind::Percent:
        return Op::Mod;
      default:
        return std::nullopt;
      }
    });
  }

  Result parseUnary() {
    if (peek().kind != TokenKind::Minus) return parsePrimary();
    return nested([this]() -> Result {
      size_t position = advance().position;
      Result operand = parseUnary();
      if (!operand) return operand;
      return typed(Op::Neg, {std::move(*operand)}, position);
    });
  }

  template <class Inner> Result nested(Inner inner) {
    if (depth == kMaxDepth)
      return failAt(what, text, peek().position, fmt::format("nested deeper than {} levels", kMaxDepth));
    ++depth;
    Result result = inner();
    --depth;
    return result;
  }

  Result parsePrimary() {
    const Token &token = peek();
    switch (token.kind) {
    case TokenKind::Int:
      return makeInt(advance().intValue, static_cast<int>(token.position));
    case TokenKind::Float:
      return makeFloat(advance().floatValue, static_cast<int>(token.position));
    case TokenKind::Name:
      return parseName();
    case TokenKind::LeftParen:
      return nested([this]() -> Result {
        advance();
        Result inner = parseOr();
        if (inner && !accept(TokenKind::RightParen)) return unexpected("')' or an operator");
        return inner;
      });
    default:
      return unexpected("a number, a variable, a table, a function or '('");
    }
  }

  Result parseName() {
    const Token &name = advance();
    int position = static_cast<int>(name.position);
    std::optional<Function> function = functionNamed(name.text);
    if (peek().kind == TokenKind::LeftBracket && !isReserved(name.text)) return parseTable(name);
    if (function) return nested([&] { return parseCall(name, *function); });
    if (name.text == "true" || name.text == "false") return makeBool(name.text == "true", position);
    if (std::optional<Variable> variable = variableNamed(name.text)) {
      if (*variable == Variable::S && !allowS)
        return failAt(what, text, name.position, "a mask cannot read the score s",
                      "masks depend on positions, lengths and tables; put conditions on s into the score expression: "
                      "where(s > 0, s, -1e30)");
      return makeVariable(*variable, position);
    }
    for (const TableSpec &table : tables)
      if (table.name == name.text)
        return failAt(what, text, name.position, fmt::format("table {} needs a subscript", name.text),
                      "a table is read as name[q], name[k], name[h], name[b] or name[b, k]");
    return failAt(what, text, name.position, fmt::format("unknown name '{}'", name.text),
                  fmt::format("variables are {}; functions are {}; a table is read as name[k]", variableNames(allowS),
                              functionNames()));
  }

  Result parseCall(const Token &name, Function function) {
    if (!accept(TokenKind::LeftParen)) return unexpected(fmt::format("'(' after the function {}", name.text));
    std::vector<ExprPtr> args;
    do {
      Result arg = parseOr();
      if (!arg) return arg;
      args.push_back(std::move(*arg));
    } while (accept(TokenKind::Comma));
    if (!accept(TokenKind::RightParen)) return unexpected("',' or ')'");
    if (args.size() != function.arity)
      return failAt(what, text, name.position,
                    fmt::format("{} takes {} argument{}, found {}", name.text, function.arity,
                                function.arity == 1 ? "" : "s", args.size()));
    return typed(function.op, std::move(args), name.position);
  }

  Result parseTable(const Token &name) {
    advance(); // '['
    std::vector<TableAxis> axes;
    do {
      std::optional<TableAxis> axis =
          peek().kind == TokenKind::Name ? axisNamed(peek().text) : std::optional<TableAxis>();
      if (!axis) return unexpected("one of q, k, h, b as a table's subscript");
      advance();
      axes.push_back(*axis);
    } while (accept(TokenKind::Comma));
    if (!accept(TokenKind::RightBracket)) return unexpected("',' or ']'");
    if (!areValidAxes(axes))
      return failAt(what, text, name.position, fmt::format("{}{} cannot be read", name.text, axesText(axes)),
                    "a table is read by one of q, k, h, b, or by b and then one of q, k, h");
    const TableSpec *otherReading = nullptr;
    for (size_t i = 0; i < tables.size(); ++i) {
      if (tables[i].name != name.text) continue;
      if (tables[i].axes == axes) return makeTable(static_cast<int>(i), tables[i], static_cast<int>(name.position));
      otherReading = &tables[i];
    }
    if (otherReading)
      return failAt(what, text, name.position,
                    fmt::format("table {} is given as {}{}, but read here as {}{}", name.text, name.text,
                                axesText(otherReading->axes), name.text, axesText(axes)),
                    "give the problem one table entry for each way in which it is read");
    return failAt(what, text, name.position, fmt::format("no table named {} is given", name.text),
                  fmt::format("give it, e.g. by --table {}=FILE.npy", name.text));
  }

  std::string_view what, text;
  const std::vector<TableSpec> &tables;
  bool allowS;
  std::vector<Token> tokens;
  size_t next = 0;
  int depth = 0;
};

} // namespace

Expected<ExprPtr> parseMask(std::string_view text, const std::vector<TableSpec> &tables) {
  auto expr = Parser("mask", text, tables, false).run();
  if (expr && (*expr)->type != Type::Bool)
    return failAt("mask", text, (*expr)->position, fmt::format("a mask is a boolean, found {}", nameOf((*expr)->type)),
                  "a mask says which keys are visible, e.g. k <= q");
  return expr;
}

Expected<ExprPtr> parseScore(std::string_view text, const std::vector<TableSpec> &tables) {
  auto expr = Parser("score", text, tables, true).run();
  if (!expr) return expr;
  if ((*expr)->type == Type::Bool)
    return failAt("score", text, (*expr)->position, "a score is a number, found a boolean",
                  "where(condition, s, -1e30) chooses between scores; to hide keys use a mask");
  return promote(std::move(*expr));
}

} // namespace tilewright::expr
