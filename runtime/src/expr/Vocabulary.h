// The names that the language knows: variables, functions, and how a table may be subscripted.
#pragma once

#include "tilewright/expr/Expression.h"
#include <optional>
#include <string_view>

namespace tilewright::expr {

struct Function {
  Op op;
  size_t arity;
};

std::optional<Variable> variableNamed(std::string_view name);
std::optional<Function> functionNamed(std::string_view name);
std::optional<TableAxis> axisNamed(std::string_view name);

std::string_view nameOf(Variable variable);
std::string_view nameOf(TableAxis axis);

/// Variables, functions, literals and word operators: what no table may be called.
bool isReserved(std::string_view name);
/// A letter or underscore, then letters, digits and underscores; not reserved.
bool isTableName(std::string_view name);
/// One axis, or B and then another one.
bool areValidAxes(const std::vector<TableAxis> &axes);
/// "[b, k]"
std::string axesText(const std::vector<TableAxis> &axes);

std::string variableNames(bool withS); ///< "q k sq sk h b", for messages
std::string functionNames();           ///< "abs exp ...", for messages

} // namespace tilewright::expr
