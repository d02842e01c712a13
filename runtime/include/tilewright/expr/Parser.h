// Text -> typed syntax tree. Grammar (lowest precedence first; README and `tilewright run --help` show the same):
//   or:      and (("||" | "or") and)*
//   and:     not (("&&" | "and") not)*
//   not:     ("!" | "not") not | compare
//   compare: sum (("<" | "<=" | ">" | ">=" | "==" | "!=") sum)?        chains such as a < b < c are refused
//   sum:     term (("+" | "-") term)*
//   term:    unary (("*" | "/" | "//" | "%") unary)*
//   unary:   "-" unary | primary
//   primary: number | "true" | "false" | variable | name "[" variable ("," variable)? "]" | function "(" args ")"
//          | "(" or ")"
// Integers: the right side of // and % is a positive literal. Floats are at most fp32's largest. A text has at most
// 4096 characters and is nested at most 100 deep, so a hostile one costs neither memory nor stack.
#pragma once

#include "tilewright/expr/Expression.h"

namespace tilewright::expr {

/// A mask gives a Bool and may not read s. Errors show the text with a caret under the offending column.
Expected<ExprPtr> parseMask(std::string_view text, const std::vector<TableSpec> &tables);
/// A score gives a number (an Int result is promoted) and may read s.
Expected<ExprPtr> parseScore(std::string_view text, const std::vector<TableSpec> &tables);

/// Tables an expression mentions, with the axes it reads them by, sorted by (name, axes), one entry a reading; element
/// types are left at int32. Used to find out which --table files an expression needs and how each is indexed. Looks at
/// names and subscripts alone: what else is wrong with the text, parseMask and parseScore say. Errors call the text
/// `what`.
Expected<std::vector<TableSpec>> tablesOf(std::string_view text, std::string_view what = "expression");

} // namespace tilewright::expr
