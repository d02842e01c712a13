// Loops of a kernel. Carried tiles stay in one place: the operations of the body work on it in place, so an iteration
// ends with nothing to copy.
#include "KernelLowering.h"

#include "SoftmaxKernel.h"

using namespace mlir;
using arith::CmpIPredicate;

namespace tilewright::cpu {

FailureOr<Emitter::Carried> KernelLowering::call(FlatSymbolRefAttr symbol, ValueRange operands) {
  auto function = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(kernel, symbol);
  if (!function) return kernel.emitOpError("calls ") << symbol << ", which does not exist";
  InlineFunction code(e, *arguments, function);
  if (failed(code.bindArguments(operands))) return failure();
  return code.evaluate();
}

LogicalResult KernelLowering::lowerForeach(tw::ForeachTileOp op) {
  bool keys = op.getAxis() == "kv";
  Type position = op.getOwnRow().getType();
  Value ownRow = scalar(op.getOwnRow()), head = scalar(op.getHead()), batch = scalar(op.getBatch());
  Value sq = e.toPosition(position, arguments->seqQ()), sk = e.toPosition(position, arguments->seqKV());
  Value length = keys ? sk : sq, ownLength = keys ? sq : sk;
  Value one = e.constant(position, 1), walk = e.constant(position, op.getWalkRows());
  Value ownLast = e.sub(e.minSigned(e.add(ownRow, e.constant(position, op.getOwnRows())), ownLength), one);

  FailureOr<Emitter::Carried> bounds = call(op.getBoundsAttr(), {ownRow, ownLast, sq, sk, head, batch});
  if (failed(bounds)) return failure();
  Value touchBegin = (*bounds)[0], touchEnd = e.minSigned((*bounds)[1], length);
  Value fullBegin = (*bounds)[2], fullEnd = (*bounds)[3];

  SmallVector<TileBuffer> carried;
  Block &body = op.getBody().front();
  for (auto [init, argument, result] :
       llvm::zip_equal(op.getInits(), body.getArguments().drop_front(2), op.getResults())) {
    carried.push_back(claim(init, op));
    assign(argument, carried.back());
    assign(result, carried.back());
  }

  // Positions are not negative, so truncating division is floor division.
  Value firstTile = arith::DivSIOp::create(e, touchBegin, walk);
  Value endTile = arith::DivSIOp::create(e, e.add(touchEnd, e.constant(position, op.getWalkRows() - 1)), walk);
  Value first = e.toI64(firstTile), last = e.toI64(endTile);
  if (op.getPart()) {
    Value part = e.toI64(scalar(op.getPart())), parts = e.constant(op.getParts());
    Value tiles =
        e.maxSigned(e.sub(last, first), e.constant(0)); // nothing is visible where the end lies before the begin
    auto cut = [&](Value number) { return Value(arith::DivSIOp::create(e, e.mul(tiles, number), parts)); };
    last = e.add(first, cut(e.add(part, e.constant(1))));
    first = e.add(first, cut(part));
  }
  LogicalResult result = success();
  e.loop(first, last, 1, [&](Value tile) {
    Value row = e.mul(e.toPosition(position, tile), walk), end = e.add(row, walk);
    Value beyond = e.compare(CmpIPredicate::sgt, end, length);
    scalars.map(body.getArgument(0), row);
    auto iteration = [&](Value certain) {
      Value uncertain = arith::XOrIOp::create(e, certain, e.constant(e.i1, 1));
      scalars.map(body.getArgument(1), arith::OrIOp::create(e, uncertain, beyond));
      result = failed(lowerBlock(body)) ? failure() : finishIteration(body.getTerminator(), carried);
    };
    if (op.getInterval() || !op.getClasses()) {
      Value from = e.compare(CmpIPredicate::sge, row, fullBegin), to = e.compare(CmpIPredicate::sle, end, fullEnd);
      return iteration(arith::AndIOp::create(e, from, to));
    }
    Value last = e.sub(e.minSigned(end, length), one);
    Value q0 = keys ? ownRow : row, q1 = keys ? ownLast : last, k0 = keys ? row : ownRow, k1 = keys ? last : ownLast;
    FailureOr<Emitter::Carried> classes = call(op.getClassesAttr(), {q0, q1, k0, k1, sq, sk, head, batch});
    if (failed(classes)) {
      result = failure();
      return;
    }
    e.branch((*classes)[0], [&] { iteration((*classes)[1]); });
  });
  return result;
}

LogicalResult KernelLowering::lowerFor(scf::ForOp loop) {
  if (!llvm::all_of(loop.getInitArgs(), [](Value v) { return isa<tw::TileType>(v.getType()); }))
    return loop.emitOpError("carries a value that is no tile");
  SmallVector<TileBuffer> carried;
  for (auto [init, argument, result] :
       llvm::zip_equal(loop.getInitArgs(), loop.getRegionIterArgs(), loop.getResults())) {
    carried.push_back(claim(init, loop));
    assign(argument, carried.back());
    assign(result, carried.back());
  }
  auto lowered =
      scf::ForOp::create(e, scalar(loop.getLowerBound()), scalar(loop.getUpperBound()), scalar(loop.getStep()));
  OpBuilder::InsertionGuard guard(e);
  e.setInsertionPointToStart(lowered.getBody());
  scalars.map(loop.getInductionVar(), lowered.getInductionVar());
  if (failed(lowerBlock(*loop.getBody()))) return failure();
  return finishIteration(loop.getBody()->getTerminator(), carried);
}

LogicalResult KernelLowering::finishIteration(Operation *yield, ArrayRef<TileBuffer> carried) {
  for (auto [value, place] : llvm::zip_equal(yield->getOperands(), carried)) {
    const TileBuffer &made = panels(value);
    if (made.base == place.base) continue;
    // A value that sits in another carried tile's place would be overwritten by copies in the wrong order.
    for (const TileBuffer &other : carried)
      if (other.base == made.base) return yield->emitOpError("exchanges carried tiles, which is not supported");
    emitCopy(e, made, place);
  }
  return success();
}

} // namespace tilewright::cpu
