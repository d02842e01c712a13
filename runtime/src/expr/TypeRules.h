// The typing rules: from an operator and typed operands to a typed node, with promotions made explicit and literals
// folded into one form, so that equal meanings have equal trees.
#pragma once

#include "tilewright/expr/Expression.h"
#include <string_view>

namespace tilewright::expr {

/// Why a node cannot be made, and under which position of the text the caret belongs.
struct TypeError {
  std::string message, hint;
  int position = 0;
};

using Typed = tl::expected<ExprPtr, TypeError>;

std::string_view nameOf(Type type); ///< "a boolean", "an integer", "a float"
std::string_view spelling(Op op);   ///< "+", "//", "&&", "where", ...; empty for leaves

ExprPtr makeInt(int64_t value, int position);
ExprPtr makeFloat(double value, int position);
ExprPtr makeBool(bool value, int position);
ExprPtr makeVariable(Variable variable, int position);
ExprPtr makeTable(int index, const TableSpec &spec, int position);

/// Any operator or function but ToFloat. Operands keep their order.
Typed makeNode(Op op, std::vector<ExprPtr> args, int position);

/// `expr` itself when it is a Float; an Int literal becomes a Float literal; any other Int is wrapped in ToFloat.
ExprPtr promote(ExprPtr expr);

} // namespace tilewright::expr
