// Which tables an expression reads, found in its tokens alone: types are unknown until the tables are, so the text
// cannot be parsed yet.

#include "Diagnostic.h"
#include "Token.h"
#include "Vocabulary.h"
#include "tilewright/expr/Parser.h"
#include <algorithm>
#include <fmt/format.h>
#include <tuple>

namespace tilewright::expr {

Expected<std::vector<TableSpec>> tablesOf(std::string_view text, std::string_view what) {
  auto tokens = tokenize(what, text);
  if (!tokens) return propagate(tokens);
  std::vector<TableSpec> tables;
  for (size_t i = 0; i + 1 < tokens->size(); ++i) {
    const Token &name = (*tokens)[i];
    if (name.kind != TokenKind::Name || (*tokens)[i + 1].kind != TokenKind::LeftBracket) continue;
    if (isReserved(name.text))
      return failAt(what, text, name.position, fmt::format("'{}' cannot name a table", name.text));
    TableSpec table{std::string(name.text), false, {}};
    size_t at = i + 2; // the token after '[' exists: the last one is End
    for (;; at += 2) {
      const Token &subscript = (*tokens)[at];
      auto axis = subscript.kind == TokenKind::Name ? axisNamed(subscript.text) : std::nullopt;
      if (!axis)
        return failAt(what, text, subscript.position,
                      fmt::format("expected one of q, k, h, b as a table's subscript, found {}", describe(subscript)));
      table.axes.push_back(*axis);
      TokenKind separator = (*tokens)[at + 1].kind;
      if (separator == TokenKind::RightBracket) break;
      if (separator != TokenKind::Comma)
        return failAt(what, text, (*tokens)[at + 1].position,
                      fmt::format("expected ',' or ']', found {}", describe((*tokens)[at + 1])));
    }
    if (!areValidAxes(table.axes))
      return failAt(what, text, name.position, fmt::format("{}{} cannot be read", table.name, axesText(table.axes)),
                    "a table is read by one of q, k, h, b, or by b and then one of q, k, h");
    tables.push_back(std::move(table));
  }
  auto key = [](const TableSpec &table) { return std::tie(table.name, table.axes); };
  std::sort(tables.begin(), tables.end(), [&](auto &a, auto &b) { return key(a) < key(b); });
  tables.erase(std::unique(tables.begin(), tables.end()), tables.end());
  return tables;
}

} // namespace tilewright::expr
