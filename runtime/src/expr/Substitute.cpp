#include "tilewright/expr/Expression.h"

namespace tilewright::expr {

ExprPtr substitute(const ExprPtr &expr, Variable variable, const ExprPtr &replacement) {
  if (expr->op == Op::Variable) return expr->variable == variable ? replacement : expr;
  std::vector<ExprPtr> args;
  bool changed = false;
  for (const ExprPtr &arg : expr->args) {
    args.push_back(substitute(arg, variable, replacement));
    changed |= args.back() != arg;
  }
  if (!changed) return expr;
  auto copy = std::make_shared<Expr>(*expr);
  copy->args = std::move(args);
  return copy;
}

} // namespace tilewright::expr
