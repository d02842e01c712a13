#include "tilewright/expr/Evaluator.h"
#include <algorithm>
#include <cmath>

namespace tilewright::expr {

namespace {

/// What a node is worth at one point; which member counts follows from the node's type.
struct Value {
  int64_t integer = 0; ///< Int and Bool
  Dual number;         ///< Float
};

// Plans are refused when a value could leave int64, so wrapping is never seen; it only keeps other callers from
// undefined behaviour.
int64_t wrappingAdd(int64_t a, int64_t b) { return static_cast<int64_t>(uint64_t(a) + uint64_t(b)); }
int64_t wrappingSub(int64_t a, int64_t b) { return static_cast<int64_t>(uint64_t(a) - uint64_t(b)); }
int64_t wrappingMul(int64_t a, int64_t b) { return static_cast<int64_t>(uint64_t(a) * uint64_t(b)); }

int64_t floorDiv(int64_t a, int64_t b) {
  int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t floorMod(int64_t a, int64_t b) {
  int64_t remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

/// A factor 0 wins over an infinite derivative: a constant stays constant under any chain.
double chain(double outer, double inner) { return inner == 0 ? 0 : outer * inner; }

class Evaluation {
public:
  Evaluation(const Point &point, const std::vector<TableData> &tables, bool inSinglePrecision = false)
      : point(point), tables(tables), inSinglePrecision(inSinglePrecision) {}

  Value of(const Expr &expr) const {
    Value value = exactly(expr);
    if (inSinglePrecision && expr.type == Type::Float)
      value.number = {static_cast<float>(value.number.value), static_cast<float>(value.number.derivative)};
    return value;
  }

private:
  Value exactly(const Expr &expr) const {
    switch (expr.op) {
    case Op::Literal:
      return {expr.intValue, {expr.floatValue, 0}};
    case Op::Variable:
      return variable(expr.variable);
    case Op::Table:
      return table(expr);
    case Op::ToFloat:
      return number(static_cast<double>(of(*expr.args[0]).integer));
    case Op::And:
      return boolean(of(*expr.args[0]).integer && of(*expr.args[1]).integer);
    case Op::Or:
      return boolean(of(*expr.args[0]).integer || of(*expr.args[1]).integer);
    case Op::Not:
      return boolean(!of(*expr.args[0]).integer);
    case Op::Where:
      return of(*expr.args[of(*expr.args[0]).integer ? 1 : 2]);
    case Op::Lt:
    case Op::Le:
    case Op::Gt:
    case Op::Ge:
    case Op::Eq:
    case Op::Ne:
      return comparison(expr);
    default:
      break;
    }
    Value a = of(*expr.args[0]), b = expr.args.size() > 1 ? of(*expr.args[1]) : Value{};
    return expr.type == Type::Int ? integer(expr.op, a.integer, b.integer)
                                  : Value{0, number(expr.op, a.number, b.number)};
  }

  static Value boolean(bool value) { return {value, {}}; }
  static Value number(double value, double derivative = 0) { return {0, {value, derivative}}; }

  Value variable(Variable variable) const {
    switch (variable) {
    case Variable::Q:
      return {point.q, {}};
    case Variable::K:
      return {point.k, {}};
    case Variable::SQ:
      return {point.sq, {}};
    case Variable::SK:
      return {point.sk, {}};
    case Variable::H:
      return {point.h, {}};
    case Variable::B:
      return {point.b, {}};
    case Variable::S:
      return number(point.s, 1);
    }
    return {};
  }

  Value table(const Expr &expr) const {
    const TableData &data = tables[expr.table];
    int64_t index = 0;
    for (TableAxis axis : expr.axes) {
      int64_t position = axis == TableAxis::Q   ? point.q
                         : axis == TableAxis::K ? point.k
                         : axis == TableAxis::H ? point.h
                                                : point.b;
      index = index * data.extent + position;
    }
    if (expr.type == Type::Float) return number(data.floats[index]);
    return {data.ints[index], {}};
  }

  Value comparison(const Expr &expr) const {
    Value a = of(*expr.args[0]), b = of(*expr.args[1]);
    if (expr.args[0]->type == Type::Int) return boolean(compare(expr.op, a.integer, b.integer));
    return boolean(compare(expr.op, a.number.value, b.number.value));
  }

  template <class T> static bool compare(Op op, T a, T b) {
    switch (op) {
    case Op::Lt:
      return a < b;
    case Op::Le:
      return a <= b;
    case Op::Gt:
      return a > b;
    case Op::Ge:
      return a >= b;
    case Op::Eq:
      return a == b;
    default:
      return a != b;
    }
  }

  static Value integer(Op op, int64_t a, int64_t b) {
    switch (op) {
    case Op::Neg:
      return {wrappingSub(0, a), {}};
    case Op::Add:
      return {wrappingAdd(a, b), {}};
    case Op::Sub:
      return {wrappingSub(a, b), {}};
    case Op::Mul:
      return {wrappingMul(a, b), {}};
    case Op::FloorDiv:
      return {floorDiv(a, b), {}};
    case Op::Mod:
      return {floorMod(a, b), {}};
    case Op::Min:
      return {std::min(a, b), {}};
    case Op::Max:
      return {std::max(a, b), {}};
    case Op::Abs:
      return {a < 0 ? wrappingSub(0, a) : a, {}};
    default:
      return {};
    }
  }

  static Dual number(Op op, Dual a, Dual b) {
    double x = a.value, y = b.value, dx = a.derivative, dy = b.derivative;
    switch (op) {
    case Op::Neg:
      return {-x, -dx};
    case Op::Add:
      return {x + y, dx + dy};
    case Op::Sub:
      return {x - y, dx - dy};
    case Op::Mul:
      return {x * y, chain(y, dx) + chain(x, dy)};
    case Op::Div:
      return {x / y, chain(1 / y, dx) - chain(x / y / y, dy)};
    // A step function: flat wherever it has a derivative.
    case Op::FloorDiv:
      return {std::floor(x / y), 0};
    case Op::Mod: {
      double quotient = std::floor(x / y);
      return {x - y * quotient, dx - chain(quotient, dy)};
    }
    // Like MLIR's minimumf and maximumf: a NaN on either side comes out, so bad input is not hidden.
    case Op::Min:
      return x <= y || std::isnan(x) ? a : b;
    case Op::Max:
      return x >= y || std::isnan(x) ? a : b;
    case Op::Abs:
      return {std::abs(x), x > 0 ? dx : x < 0 ? -dx : 0};
    case Op::Exp:
      return {std::exp(x), chain(std::exp(x), dx)};
    case Op::Log:
      return {std::log(x), chain(1 / x, dx)};
    case Op::Tanh: {
      double t = std::tanh(x);
      return {t, chain(1 - t * t, dx)};
    }
    default:
      return {};
    }
  }

  const Point &point;
  const std::vector<TableData> &tables;
  const bool inSinglePrecision;
};

Dual numberOf(const Expr &expr, const Value &value) {
  if (expr.type == Type::Float) return value.number;
  return {static_cast<double>(value.integer), 0};
}

} // namespace

bool evaluateBool(const Expr &expr, const Point &point, const std::vector<TableData> &tables) {
  return Evaluation(point, tables).of(expr).integer != 0;
}

Dual evaluateWithDerivative(const Expr &expr, const Point &point, const std::vector<TableData> &tables) {
  return numberOf(expr, Evaluation(point, tables).of(expr));
}

Dual evaluateInSinglePrecision(const Expr &expr, const Point &point, const std::vector<TableData> &tables) {
  return numberOf(expr, Evaluation(point, tables, true).of(expr));
}

double evaluateNumber(const Expr &expr, const Point &point, const std::vector<TableData> &tables) {
  return evaluateWithDerivative(expr, point, tables).value;
}

} // namespace tilewright::expr
