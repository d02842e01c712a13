#include "IntegerInterpreter.h"

#include "BoxAnalysis.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace tilewright {

/// What a register of this type keeps: an overflow here must show as it does in compiled code.
static int64_t wrapped(int64_t value, Type type) { return type.isInteger(32) ? static_cast<int32_t>(value) : value; }

IntegerInterpreter::IntegerInterpreter(func::FuncOp function, const std::vector<expr::TableData> &tables,
                                       const std::vector<int64_t> &batchStrides)
    : function(function), tables(tables), batchStrides(batchStrides) {
  Block &body = function.getBody().front();
  auto add = [&](Value v) { index[v] = index.size(); };
  for (Value argument : body.getArguments()) add(argument);
  for (Operation &op : body)
    for (Value result : op.getResults()) add(result);
  slots.resize(index.size());
}

ArrayRef<int64_t> IntegerInterpreter::call(ArrayRef<int64_t> arguments) {
  llvm::copy(arguments, slots.begin());
  Block &body = function.getBody().front();
  for (Operation &op : body.without_terminator()) {
    if (isa<tw::TableBoundsOp>(op)) evaluateTableBounds(op);
    else slots[index.lookup(op.getResult(0))] = wrapped(evaluate(op), op.getResult(0).getType());
  }
  results.clear();
  for (Value operand : body.getTerminator()->getOperands()) results.push_back(value(operand));
  return results;
}

int64_t IntegerInterpreter::evaluate(Operation &op) {
  auto in = [&](unsigned i) { return value(op.getOperand(i)); };
  return llvm::TypeSwitch<Operation *, int64_t>(&op)
      .Case([&](arith::ConstantOp) { return *constantOf(op.getResult(0)); })
      .Case([&](arith::AddIOp) { return in(0) + in(1); })
      .Case([&](arith::SubIOp) { return in(0) - in(1); })
      .Case([&](arith::MulIOp) { return in(0) * in(1); })
      .Case([&](arith::MinSIOp) { return std::min(in(0), in(1)); })
      .Case([&](arith::MaxSIOp) { return std::max(in(0), in(1)); })
      .Case([&](arith::FloorDivSIOp) { return llvm::divideFloorSigned(in(0), in(1)); })
      .Case([&](arith::AndIOp) { return in(0) & in(1); })
      .Case([&](arith::OrIOp) { return in(0) | in(1); })
      .Case([&](arith::XOrIOp) { return in(0) ^ in(1); })
      .Case([&](arith::SelectOp) { return in(0) ? in(1) : in(2); })
      .Case([&](arith::ExtSIOp) { return in(0); })
      .Case([&](math::AbsIOp) { return std::abs(in(0)); })
      .Case([&](arith::CmpIOp compare) -> int64_t {
        switch (compare.getPredicate()) {
        case arith::CmpIPredicate::eq: return in(0) == in(1);
        case arith::CmpIPredicate::ne: return in(0) != in(1);
        case arith::CmpIPredicate::slt: return in(0) < in(1);
        case arith::CmpIPredicate::sle: return in(0) <= in(1);
        case arith::CmpIPredicate::sgt: return in(0) > in(1);
        case arith::CmpIPredicate::sge: return in(0) >= in(1);
        default: llvm_unreachable("box analysis compares signed");
        }
      })
      .Case([&](tw::ReadTableOp read) -> int64_t {
        const expr::TableData &table = tables[read.getTable()];
        int64_t batch = read.getIndices().size() == 2 ? in(0) * batchStrides[read.getTable()] : 0;
        return table.ints[batch + value(read.getIndices().back())];
      })
      .Default([](Operation *) -> int64_t { llvm_unreachable("not an operation of the box analysis"); });
}

void IntegerInterpreter::evaluateTableBounds(Operation &op) {
  auto bounds = cast<tw::TableBoundsOp>(op);
  const expr::TableData &table = tables[bounds.getTable()];
  int64_t base = bounds.getBatch() ? value(bounds.getBatch()) * batchStrides[bounds.getTable()] : 0;
  int64_t first = std::max<int64_t>(value(bounds.getFirst()), 0);
  int64_t last = std::min(value(bounds.getLast()), table.extent - 1);
  // An empty range constrains nothing and is contradicted by everything: min above max.
  int64_t low = std::numeric_limits<int32_t>::max(), high = std::numeric_limits<int32_t>::min();
  for (int64_t i = first; i <= last; ++i) {
    low = std::min<int64_t>(low, table.ints[base + i]);
    high = std::max<int64_t>(high, table.ints[base + i]);
  }
  slots[index.lookup(bounds.getMin())] = low;
  slots[index.lookup(bounds.getMax())] = high;
}

} // namespace tilewright
