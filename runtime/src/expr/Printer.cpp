// Canonical text: one spelling for equal trees, with as few parentheses as the grammar needs.

#include "TypeRules.h"
#include "Vocabulary.h"
#include <cmath>
#include <fmt/format.h>

namespace tilewright::expr {

namespace {

/// The grammar's levels, loosest first.
enum Level { OrLevel, AndLevel, NotLevel, CompareLevel, SumLevel, TermLevel, UnaryLevel, PrimaryLevel };

std::string floatText(double value) {
  std::string text = fmt::format("{}", value);
  // Without a mark it would read back as an integer.
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

Level levelOf(const Expr &expr) {
  switch (expr.op) {
  case Op::Or:
    return OrLevel;
  case Op::And:
    return AndLevel;
  case Op::Not:
    return NotLevel;
  case Op::Lt:
  case Op::Le:
  case Op::Gt:
  case Op::Ge:
  case Op::Eq:
  case Op::Ne:
    return CompareLevel;
  case Op::Add:
  case Op::Sub:
    return SumLevel;
  case Op::Mul:
  case Op::Div:
  case Op::FloorDiv:
  case Op::Mod:
    return TermLevel;
  case Op::Neg:
    return UnaryLevel;
  case Op::Literal:
    if (expr.type == Type::Float) return std::signbit(expr.floatValue) ? UnaryLevel : PrimaryLevel;
    return expr.intValue < 0 ? UnaryLevel : PrimaryLevel;
  case Op::ToFloat:
    return levelOf(*expr.args[0]);
  default:
    return PrimaryLevel;
  }
}

class Printer {
public:
  explicit Printer(const std::vector<TableSpec> &tables) : tables(tables) {}

  /// Appends `expr`, in parentheses when it binds looser than `least`.
  void print(const Expr &expr, Level least) {
    bool parentheses = levelOf(expr) < least;
    if (parentheses) out += '(';
    printBare(expr);
    if (parentheses) out += ')';
  }

  std::string out;

private:
  void printBare(const Expr &expr) {
    switch (expr.op) {
    case Op::Literal:
      return printLiteral(expr);
    case Op::Variable:
      out += nameOf(expr.variable);
      return;
    case Op::Table:
      out += tables.at(expr.table).name;
      out += axesText(expr.axes);
      return;
    // The parser puts a promotion wherever one is needed, so it has no spelling of its own.
    case Op::ToFloat:
      return printBare(*expr.args[0]);
    case Op::Neg:
      out += '-';
      return print(*expr.args[0], UnaryLevel);
    case Op::Not:
      out += '!';
      // `!a < b` would be read right, but not by people.
      return print(*expr.args[0], levelOf(*expr.args[0]) == NotLevel ? NotLevel : PrimaryLevel);
    case Op::Where:
    case Op::Min:
    case Op::Max:
    case Op::Abs:
    case Op::Exp:
    case Op::Log:
    case Op::Tanh:
      return printCall(expr);
    default:
      return printBinary(expr);
    }
  }

  void printLiteral(const Expr &expr) {
    if (expr.type == Type::Bool)
      out += expr.intValue ? "true" : "false";
    else if (expr.type == Type::Int)
      out += fmt::format("{}", expr.intValue);
    else
      out += floatText(expr.floatValue);
  }

  void printCall(const Expr &expr) {
    out += spelling(expr.op);
    out += '(';
    for (size_t i = 0; i < expr.args.size(); ++i) {
      if (i > 0) out += ", ";
      print(*expr.args[i], OrLevel);
    }
    out += ')';
  }

  void printBinary(const Expr &expr) {
    Level level = levelOf(expr);
    // Comparisons do not chain; all other operators associate to the left.
    print(*expr.args[0], level == CompareLevel ? SumLevel : level);
    out += ' ';
    out += spelling(expr.op);
    out += ' ';
    print(*expr.args[1], static_cast<Level>(level + 1));
  }

  const std::vector<TableSpec> &tables;
};

} // namespace

std::string toString(const Expr &expr, const std::vector<TableSpec> &tables) {
  Printer printer(tables);
  printer.print(expr, OrLevel);
  return std::move(printer.out);
}

} // namespace tilewright::expr
