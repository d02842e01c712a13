#include "CudaText.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/TypeSwitch.h"
#include <cmath>
#include <fmt/format.h>

using namespace mlir;

namespace tilewright {

std::string cudaType(Type type) {
  if (auto object = dyn_cast<tw::ObjectType>(type)) return object.getSpelling().str();
  if (type.isF32()) return "float";
  if (type.isInteger(1)) return "bool";
  return type.isInteger(64) ? "tw::Int64" : "int";
}

namespace {

std::string floatLiteral(double value) {
  if (std::isinf(value)) return value > 0 ? "tw::infinity()" : "tw::minusInfinity()";
  std::string digits = fmt::format("{:.9g}", value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".";
  return value < 0 ? "(" + digits + "f)" : digits + "f";
}

std::string constantText(arith::ConstantOp constant) {
  if (auto number = dyn_cast<FloatAttr>(constant.getValue())) return floatLiteral(number.getValueAsDouble());
  auto integer = cast<IntegerAttr>(constant.getValue());
  if (integer.getType().isInteger(1)) return integer.getValue().isZero() ? "false" : "true";
  int64_t value = integer.getInt();
  std::string digits = fmt::format("{}{}", value, integer.getType().isInteger(64) ? "ll" : "");
  return value < 0 ? "(" + digits + ")" : digits;
}

const char *comparison(arith::CmpIPredicate predicate) {
  switch (predicate) {
  case arith::CmpIPredicate::eq:
    return "==";
  case arith::CmpIPredicate::ne:
    return "!=";
  case arith::CmpIPredicate::slt:
    return "<";
  case arith::CmpIPredicate::sle:
    return "<=";
  case arith::CmpIPredicate::sgt:
    return ">";
  case arith::CmpIPredicate::sge:
    return ">=";
  default:
    llvm_unreachable("positions compare signed");
  }
}

const char *comparison(arith::CmpFPredicate predicate) {
  switch (predicate) {
  case arith::CmpFPredicate::OEQ:
    return "==";
  case arith::CmpFPredicate::UNE:
    return "!=";
  case arith::CmpFPredicate::OLT:
    return "<";
  case arith::CmpFPredicate::OLE:
    return "<=";
  case arith::CmpFPredicate::OGT:
    return ">";
  case arith::CmpFPredicate::OGE:
    return ">=";
  default:
    llvm_unreachable("the expression language has no other comparison");
  }
}

/// "$0 + $1" with the operands put in.
std::string substitute(StringRef text, ArrayRef<std::string> operands) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '$' && i + 1 < text.size() && isdigit(text[i + 1]))
      result += operands[text[++i] - '0'];
    else
      result += text[i];
  }
  return result;
}

} // namespace

std::string CudaText::expression(Value value) const {
  auto known = names.find(value);
  return known != names.end() ? known->second : define(value.getDefiningOp());
}

std::string CudaText::tablePosition(Value position) const {
  auto end = ends.find(position);
  return end == ends.end() ? bare(position) : fmt::format("{0} < {1} ? {0} : 0", bare(position), bare(end->second));
}

std::string CudaText::bare(Value value) const {
  std::string text = expression(value);
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') return text;
  int depth = 0;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (depth == 0) return text; // the first parenthesis closes before the end
  }
  return text.substr(1, text.size() - 2);
}

std::string CudaText::list(ValueRange values) const {
  std::string text;
  for (Value value : values)
    text += (text.empty() ? "" : ", ") + bare(value);
  return text;
}

std::string CudaText::define(Operation *op) const {
  auto in = [&](unsigned i) { return expression(op->getOperand(i)); };
  auto infix = [&](const char *symbol) { return fmt::format("({} {} {})", in(0), symbol, in(1)); };
  auto call = [&](const char *name) { return fmt::format("{}({})", name, list(op->getOperands())); };
  return llvm::TypeSwitch<Operation *, std::string>(op)
      .Case([&](arith::ConstantOp o) { return constantText(o); })
      .Case<arith::AddIOp, arith::AddFOp>([&](auto) { return infix("+"); })
      .Case<arith::SubIOp, arith::SubFOp>([&](auto) { return infix("-"); })
      .Case<arith::MulIOp, arith::MulFOp>([&](auto) { return infix("*"); })
      .Case<arith::DivSIOp, arith::DivFOp>([&](auto) { return infix("/"); })
      .Case([&](arith::NegFOp) { return fmt::format("(-{})", in(0)); })
      .Case([&](arith::FloorDivSIOp) { return call("tw::floorDiv"); })
      .Case([&](arith::MinSIOp) { return call("min"); })
      .Case([&](arith::MaxSIOp) { return call("max"); })
      .Case([&](arith::MinNumFOp) { return call("fminf"); })
      .Case([&](arith::MaxNumFOp) { return call("fmaxf"); })
      .Case([&](math::AbsIOp) { return call("abs"); })
      .Case([&](math::AbsFOp) { return call("fabsf"); })
      .Case([&](math::FloorOp) { return call("floorf"); })
      .Case([&](math::ExpOp) { return call("expf"); })
      .Case([&](math::LogOp) { return call("logf"); })
      .Case([&](math::TanhOp) { return call("tanhf"); })
      .Case([&](arith::SIToFPOp) { return call("float"); })
      .Case([&](arith::ExtSIOp) { return call("tw::Int64"); })
      .Case([&](arith::AndIOp) { return infix("&&"); })
      .Case([&](arith::OrIOp) { return infix("||"); })
      .Case([&](arith::XOrIOp) { return infix("!="); })
      .Case([&](arith::CmpIOp o) { return infix(comparison(o.getPredicate())); })
      .Case([&](arith::CmpFOp o) { return infix(comparison(o.getPredicate())); })
      .Case([&](arith::SelectOp) { return fmt::format("({} ? {} : {})", in(0), in(1), in(2)); })
      .Case([&](tw::ReadTableOp o) {
        bool batched = o.getIndices().size() == 2;
        return fmt::format("tw::readTable<{}>(args.tables[{}], {}, {})", cudaType(o.getElement().getType()),
                           o.getTable(), batched ? bare(o.getIndices().front()) : "0",
                           tablePosition(o.getIndices().back()));
      })
      .Case([&](tw::ArgumentOp o) { return fmt::format("args.{}", o.getField().str()); })
      .Case([&](tw::FieldOp o) { return fmt::format("{}.{}", expression(o.getObject()), o.getField().str()); })
      .Case([&](tw::ExpressionOp o) {
        SmallVector<std::string, 4> operands;
        for (Value operand : o.getOperands())
          operands.push_back(expression(operand));
        return substitute(o.getText(), operands);
      })
      .Case([&](tw::MicroOp o) {
        std::string callee = o.getCallee().str();
        std::string arguments = o.getTemplateArgs() ? "<" + o.getTemplateArgs()->str() + ">" : "";
        if (callee.front() == '.')
          return fmt::format("{}{}{}({})", expression(o.getOperands().front()), callee, arguments,
                             list(o.getOperands().drop_front()));
        return fmt::format("{}{}({})", callee, arguments, list(o.getOperands()));
      })
      .Default([](Operation *o) -> std::string {
        llvm::report_fatal_error(llvm::Twine("no CUDA spelling for ") + o->getName().getStringRef());
      });
}

} // namespace tilewright
