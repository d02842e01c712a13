#include "TypeRules.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright::expr {

std::string_view nameOf(Type type) {
  switch (type) {
  case Type::Bool:
    return "a boolean";
  case Type::Int:
    return "an integer";
  case Type::Float:
    return "a float";
  }
  return "unknown";
}

std::string_view spelling(Op op) {
  switch (op) {
  case Op::Neg:
    return "-";
  case Op::Add:
    return "+";
  case Op::Sub:
    return "-";
  case Op::Mul:
    return "*";
  case Op::Div:
    return "/";
  case Op::FloorDiv:
    return "//";
  case Op::Mod:
    return "%";
  case Op::Lt:
    return "<";
  case Op::Le:
    return "<=";
  case Op::Gt:
    return ">";
  case Op::Ge:
    return ">=";
  case Op::Eq:
    return "==";
  case Op::Ne:
    return "!=";
  case Op::And:
    return "&&";
  case Op::Or:
    return "||";
  case Op::Not:
    return "!";
  case Op::Where:
    return "where";
  case Op::Min:
    return "min";
  case Op::Max:
    return "max";
  case Op::Abs:
    return "abs";
  case Op::Exp:
    return "exp";
  case Op::Log:
    return "log";
  case Op::Tanh:
    return "tanh";
  case Op::Literal:
  case Op::Variable:
  case Op::Table:
  case Op::ToFloat:
    return "";
  }
  return "";
}

namespace {

ExprPtr node(Op op, Type type, std::vector<ExprPtr> args, int position) {
  auto expr = std::make_shared<Expr>();
  expr->op = op;
  expr->type = type;
  expr->args = std::move(args);
  expr->position = position;
  return expr;
}

tl::unexpected<TypeError> refuse(int position, std::string message, std::string hint = {}) {
  return tl::unexpected<TypeError>(TypeError{std::move(message), std::move(hint), position});
}

bool isNumber(const ExprPtr &expr) { return expr->type != Type::Bool; }

/// The first operand that is not a number, as an error.
tl::expected<void, TypeError> requireNumbers(Op op, const std::vector<ExprPtr> &args, size_t first = 0) {
  for (size_t i = first; i < args.size(); ++i)
    if (!isNumber(args[i]))
      return refuse(args[i]->position, fmt::format("{} needs numbers, found {}", spelling(op), nameOf(args[i]->type)),
                    "where(condition, 1, 0) makes a number of a boolean");
  return {};
}

/// One common number type for args[first...]: Float as soon as one is.
Type unify(std::vector<ExprPtr> &args, size_t first = 0) {
  bool anyFloat = std::any_of(args.begin() + first, args.end(), [](auto &arg) { return arg->type == Type::Float; });
  if (!anyFloat) return Type::Int;
  std::transform(args.begin() + first, args.end(), args.begin() + first, promote);
  return Type::Float;
}

bool isZeroLiteral(const Expr &expr) {
  if (expr.op != Op::Literal) return false;
  // What rounds to 0 in fp32 divides by 0 there.
  return expr.type == Type::Float ? static_cast<float>(expr.floatValue) == 0 : expr.intValue == 0;
}

Typed makeDivision(Op op, std::vector<ExprPtr> args, int position) {
  const ExprPtr &divisor = args[1];
  if (isZeroLiteral(*divisor)) return refuse(divisor->position, fmt::format("{} by zero", spelling(op)));
  if (op == Op::Div) {
    std::transform(args.begin(), args.end(), args.begin(), promote);
    return node(op, Type::Float, std::move(args), position);
  }
  // A literal divisor keeps masks quasi-affine, and no run-time value can divide by zero.
  if (unify(args) == Type::Int && !(args[1]->op == Op::Literal && args[1]->intValue > 0))
    return refuse(args[1]->position,
                  fmt::format("the right side of {} on integers must be a positive integer literal", spelling(op)),
                  "make one side a float to divide by a value that is known only at run time, e.g. q // (1.0 * sk)");
  Type type = args[0]->type;
  return node(op, type, std::move(args), position);
}

Typed makeComparison(Op op, std::vector<ExprPtr> args, int position) {
  for (const ExprPtr &arg : args)
    if (!isNumber(arg))
      return refuse(arg->position, fmt::format("{} compares numbers, found a boolean", spelling(op)),
                    "combine booleans with && || !; a chain a < b < c is a < b && b < c");
  unify(args);
  return node(op, Type::Bool, std::move(args), position);
}

Typed makeLogic(Op op, std::vector<ExprPtr> args, int position) {
  for (const ExprPtr &arg : args)
    if (isNumber(arg))
      return refuse(arg->position, fmt::format("{} needs booleans, found {}", spelling(op), nameOf(arg->type)),
                    "compare the number with something, e.g. x != 0");
  return node(op, Type::Bool, std::move(args), position);
}

Typed makeWhere(std::vector<ExprPtr> args, int position) {
  if (isNumber(args[0]))
    return refuse(args[0]->position,
                  fmt::format("the first argument of where is a condition, found {}", nameOf(args[0]->type)),
                  "compare the number with something, e.g. x != 0");
  if (isNumber(args[1]) != isNumber(args[2]))
    return refuse(args[2]->position, fmt::format("where chooses between values of one kind, found {} and {}",
                                                 nameOf(args[1]->type), nameOf(args[2]->type)));
  Type type = isNumber(args[1]) ? unify(args, 1) : Type::Bool;
  return node(Op::Where, type, std::move(args), position);
}

Typed makeNegation(std::vector<ExprPtr> args, int position) {
  const Expr &arg = *args[0];
  if (arg.op == Op::Literal) {
    if (arg.type == Type::Float) return makeFloat(-arg.floatValue, position);
    if (arg.intValue != INT64_MIN) return makeInt(-arg.intValue, position);
  }
  return node(Op::Neg, arg.type, std::move(args), position);
}

} // namespace

ExprPtr makeInt(int64_t value, int position) {
  auto expr = std::make_shared<Expr>();
  expr->intValue = value;
  expr->position = position;
  return expr;
}

ExprPtr makeFloat(double value, int position) {
  auto expr = std::make_shared<Expr>();
  expr->type = Type::Float;
  expr->floatValue = value;
  expr->position = position;
  return expr;
}

ExprPtr makeBool(bool value, int position) {
  auto expr = std::make_shared<Expr>();
  expr->type = Type::Bool;
  expr->intValue = value;
  expr->position = position;
  return expr;
}

ExprPtr makeVariable(Variable variable, int position) {
  auto expr = std::make_shared<Expr>();
  expr->op = Op::Variable;
  expr->type = variable == Variable::S ? Type::Float : Type::Int;
  expr->variable = variable;
  expr->position = position;
  return expr;
}

ExprPtr makeTable(int index, const TableSpec &spec, int position) {
  auto expr = std::make_shared<Expr>();
  expr->op = Op::Table;
  expr->type = spec.isFloat ? Type::Float : Type::Int;
  expr->table = index;
  expr->axes = spec.axes;
  expr->position = position;
  return expr;
}

ExprPtr promote(ExprPtr expr) {
  if (expr->type == Type::Float) return expr;
  if (expr->op == Op::Literal) return makeFloat(static_cast<double>(expr->intValue), expr->position);
  int position = expr->position;
  return node(Op::ToFloat, Type::Float, {std::move(expr)}, position);
}

Typed makeNode(Op op, std::vector<ExprPtr> args, int position) {
  switch (op) {
  case Op::Lt:
  case Op::Le:
  case Op::Gt:
  case Op::Ge:
  case Op::Eq:
  case Op::Ne:
    return makeComparison(op, std::move(args), position);
  case Op::And:
  case Op::Or:
  case Op::Not:
    return makeLogic(op, std::move(args), position);
  case Op::Where:
    return makeWhere(std::move(args), position);
  default:
    break;
  }
  if (auto status = requireNumbers(op, args); !status) return tl::unexpected<TypeError>(status.error());
  switch (op) {
  case Op::Neg:
    return makeNegation(std::move(args), position);
  case Op::Div:
  case Op::FloorDiv:
  case Op::Mod:
    return makeDivision(op, std::move(args), position);
  case Op::Exp:
  case Op::Log:
  case Op::Tanh:
    return node(op, Type::Float, {promote(args[0])}, position);
  default: {
    Type type = unify(args);
    return node(op, type, std::move(args), position);
  }
  }
}

} // namespace tilewright::expr
