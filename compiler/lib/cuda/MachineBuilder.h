// Short spellings for the machine-level operations that schedule passes build.
#pragma once

#include "tilewright/dialect/Tw.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include <fmt/format.h>

namespace tilewright {

class MachineBuilder : public mlir::ImplicitLocOpBuilder {
public:
  using ImplicitLocOpBuilder::ImplicitLocOpBuilder;

  mlir::Type i32() { return getI32Type(); }
  mlir::Type object(const std::string &spelling) { return tw::ObjectType::get(getContext(), spelling); }

  mlir::Value constant(int64_t value) { return mlir::arith::ConstantOp::create(*this, getI32IntegerAttr(value)); }
  mlir::Value argument(llvm::StringRef field, mlir::Type type) { return tw::ArgumentOp::create(*this, type, field); }
  mlir::Value length(llvm::StringRef field) { return argument(field, i32()); }
  mlir::Value field(mlir::Value object, llvm::StringRef name, mlir::Type type) {
    return tw::FieldOp::create(*this, type, object, name);
  }
  mlir::Value name(llvm::StringRef identifier, mlir::Value value) {
    return tw::NameOp::create(*this, value.getType(), value, identifier);
  }
  mlir::Value expression(const std::string &text, mlir::ValueRange operands, mlir::Type type) {
    return tw::ExpressionOp::create(*this, type, text, operands);
  }
  mlir::Value variable(llvm::StringRef identifier, const std::string &type, mlir::ValueRange arguments = {}) {
    return tw::VariableOp::create(*this, object(type), identifier, arguments);
  }
  /// A statement.
  void call(llvm::StringRef callee, mlir::ValueRange operands, const std::string &templateArgs = {}) {
    tw::MicroOp::create(*this, mlir::Type(), callee, templateArgs.empty() ? mlir::StringAttr() : getStringAttr(templateArgs),
                        operands);
  }
  /// An expression.
  mlir::Value value(llvm::StringRef callee, mlir::ValueRange operands, mlir::Type type,
                    const std::string &templateArgs = {}) {
    return tw::MicroOp::create(*this, type, callee,
                               templateArgs.empty() ? mlir::StringAttr() : getStringAttr(templateArgs), operands)
        .getValue();
  }
  void assign(mlir::Value target, mlir::Value value) { tw::AssignOp::create(*this, target, value); }
  mlir::Value add(mlir::Value a, mlir::Value b) { return mlir::arith::AddIOp::create(*this, a, b); }
  mlir::Value multiply(mlir::Value a, mlir::Value b) { return mlir::arith::MulIOp::create(*this, a, b); }
  mlir::Value divide(mlir::Value a, mlir::Value b) { return mlir::arith::DivSIOp::create(*this, a, b); }

  /// Builds `body` inside a new block of an op that has one region.
  template <class Op> void inside(Op op, llvm::function_ref<void(mlir::Block &)> body) {
    InsertionGuard guard(*this);
    mlir::Block *block = createBlock(&op.getBody());
    body(*block);
  }
  void ifTrue(mlir::Value condition, llvm::function_ref<void()> body) {
    inside(tw::IfOp::create(*this, condition), [&](mlir::Block &) { body(); });
  }
  void whileTrue(mlir::Value condition, llvm::function_ref<void()> body) {
    inside(tw::WhileOp::create(*this, condition), [&](mlir::Block &) { body(); });
  }
};

} // namespace tilewright
