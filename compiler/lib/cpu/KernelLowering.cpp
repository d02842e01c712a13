#include "KernelLowering.h"

#include "DotKernel.h"
#include "NumberFormat.h"
#include "SoftmaxKernel.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace tilewright::cpu {

KernelLowering::KernelLowering(tw::KernelOp kernel, int64_t vectorBits)
    : kernel(kernel), e(kernel.getLoc(), kernel.getContext(), vectorBits), ownsKeys(kernel.getRole() == "dkv") {}

LogicalResult KernelLowering::lower() {
  // The stored type is that of any loaded tensor; row values are always f32.
  kernel.walk([&](tw::LoadStateOp load) { stored = load.getStored(); });
  kernel.walk([&](tw::LoadOp load) {
    if (!Arguments::isRowVector(load.getTensor())) stored = load.getTile().getType().getElementType();
  });
  if (!stored) return kernel.emitOpError("loads no tensor");

  e.setInsertionPoint(kernel);
  std::string name = kernel.getSymName().str();
  auto function = func::FuncOp::create(e, name, e.getFunctionType({e.pointer, e.i64, e.i64, e.pointer}, {}));
  function.setArgAttr(3, LLVM::LLVMDialect::getNoAliasAttrName(), e.getUnitAttr());
  Block *entry = function.addEntryBlock();
  e.setInsertionPointToStart(entry);
  auto done = func::ReturnOp::create(e);
  e.setInsertionPoint(done);
  Operation *anchor = e.constant(0).getDefiningOp();
  arguments.emplace(e, entry->getArgument(0), anchor);
  storage.emplace(e, entry->getArgument(3), anchor);

  LogicalResult result = success();
  Block &body = kernel.getBody().front();
  Value tileRows = e.constant(kernel.getOwnRows());
  Value length = ownsKeys ? arguments->seqKV() : arguments->seqQ();
  Value heads = ownsKeys ? arguments->headsKV() : arguments->headsQ();
  Value tileCount = arith::DivSIOp::create(e, e.add(length, e.constant(kernel.getOwnRows() - 1)), tileRows);
  e.loop(entry->getArgument(1), entry->getArgument(2), 1, [&](Value block) {
    // block = ((batch * heads + head) * tiles + tile) * parts + part
    Value part = e.constant(0);
    if (int64_t parts = kernel.getParts(); parts > 1) {
      part = arith::RemSIOp::create(e, block, e.constant(parts));
      block = arith::DivSIOp::create(e, block, e.constant(parts));
    }
    Value tile = arith::RemSIOp::create(e, block, tileCount), rest = arith::DivSIOp::create(e, block, tileCount);
    Value head = arith::RemSIOp::create(e, rest, heads), batch = arith::DivSIOp::create(e, rest, heads);
    if (kernel->hasAttr("longest_first")) tile = e.sub(e.sub(tileCount, e.constant(1)), tile);
    Value values[] = {e.mul(tile, tileRows), head, batch, arguments->seqQ(), arguments->seqKV(), part};
    for (auto [argument, value] : llvm::zip_first(body.getArguments(), values))
      scalars.map(argument, e.toPosition(argument.getType(), value));
    result = lowerBlock(body);
  });
  if (failed(result)) return failure();
  function->setAttr("tw.scratch_bytes", e.getI64IntegerAttr(storage->bytes()));
  kernel.erase();
  function.setName(name);
  return success();
}

LogicalResult KernelLowering::lowerBlock(Block &block) {
  for (Operation &op : block.without_terminator())
    if (failed(lowerOperation(op))) return failure();
  return success();
}

LogicalResult KernelLowering::lowerOperation(Operation &op) {
  return llvm::TypeSwitch<Operation *, LogicalResult>(&op)
      .Case([&](tw::LoadOp o) { return lowerLoad(o); })
      .Case([&](tw::StoreOp o) { return lowerStore(o); })
      .Case([&](tw::FillOp o) {
        TileBuffer tile = storage->allocate(o.getTile().getType(), true);
        emitFill(e, tile, o.getValue().convertToFloat());
        assign(o.getTile(), tile);
        return success();
      })
      .Case([&](tw::DotOp o) { return lowerDot(o); })
      .Case([&](tw::ScoreOp o) { return lowerScore(o); })
      .Case([&](tw::MaskOp o) { return lowerMask(o); })
      .Case([&](tw::ScoreGradientOp o) { return lowerScoreGradient(o); })
      .Case([&](tw::SoftmaxUpdateOp o) { return lowerUpdate(o); })
      .Case([&](tw::SoftmaxFinishOp o) {
        TileBuffer result = claim(o.getO(), o), lse = placeOver(o.getL(), o), rest = placeOver(o.getM(), o);
        emitSoftmaxFinish(e, panels(o.getM()), panels(o.getL()), result, lse, rest);
        assign(o.getOResult(), result);
        assign(o.getLse(), lse);
        assign(o.getRest(), rest);
        return success();
      })
      .Case([&](tw::ProbabilityOp o) {
        TileBuffer p = placeOver(o.getS(), o);
        emitProbability(e, panels(o.getS()), panels(o.getLse()), panels(o.getRest()), p);
        assign(o.getP(), p);
        return success();
      })
      .Case([&](tw::SoftmaxGradientOp o) {
        TileBuffer ds = placeOver(o.getDp(), o);
        emitSoftmaxGradient(e, panels(o.getP()), panels(o.getDp()), panels(o.getDelta()), ds);
        assign(o.getDs(), ds);
        return success();
      })
      .Case([&](tw::ScaleOp o) {
        TileBuffer result = placeOver(o.getX(), o);
        emitScale(e, panels(o.getX()), arguments->scale(), result);
        assign(o.getResult(), result);
        return success();
      })
      .Case([&](tw::RowDotOp o) {
        TileBuffer result = storage->allocate(o.getResult().getType(), true);
        emitRowDot(e, panels(o.getA()), panels(o.getB()), result);
        assign(o.getResult(), result);
        return success();
      })
      .Case([&](tw::StoreStateOp o) { return lowerStoreState(o); })
      .Case([&](tw::LoadStateOp o) { return lowerLoadState(o); })
      .Case([&](tw::MergeOp o) { return lowerMerge(o); })
      .Case([&](tw::ForeachTileOp o) { return lowerForeach(o); })
      .Case([&](scf::ForOp o) { return lowerFor(o); })
      .Default([&](Operation *other) -> LogicalResult {
        bool plain = isa<arith::ArithDialect>(other->getDialect()) && other->getNumRegions() == 0;
        if (!plain) return other->emitOpError("has no CPU form in a kernel");
        e.clone(*other, scalars);
        return success();
      });
}

LogicalResult KernelLowering::lowerLoad(tw::LoadOp op) {
  tw::TileType type = op.getTile().getType();
  StringRef tensor = op.getTensor();
  Value batch = e.toI64(scalar(op.getBatch())), head = e.toI64(scalar(op.getHead()));
  std::optional<HeadView> view = arguments->view(tensor, batch, head, bytesOf(type.getElementType()));
  if (!view) return op.emitOpError("unknown tensor '") << tensor << "'";
  bool rowVector = Arguments::isRowVector(tensor);
  TileSource source{*view, type.getElementType(), e.toI64(scalar(op.getRow())), arguments->length(tensor), rowVector};

  bool asRight = false, asLeft = rowVector, weighted = false;
  for (OpOperand &use : op.getTile().getUses()) {
    auto dot = dyn_cast<tw::DotOp>(use.getOwner());
    bool right = dot && use.getOperandNumber() == 1;
    asRight |= right;
    asLeft |= !right;
    weighted |= right && !dot.getTransposeB();
  }
  Tile &tile = tiles[op.getTile()];
  if (asLeft) {
    tile.panels = storage->allocate(type, true);
    emitLoadTile(e, source, tile.panels, false);
  }
  if (asRight) {
    tile.rows = storage->allocate(type, false);
    emitLoadTile(e, source, tile.rows, weighted);
  }
  return success();
}

LogicalResult KernelLowering::lowerStore(tw::StoreOp op) {
  StringRef tensor = op.getTensor();
  bool rowVector = Arguments::isRowVector(tensor);
  Type element = rowVector ? e.f32 : stored;
  Value batch = e.toI64(scalar(op.getBatch())), head = e.toI64(scalar(op.getHead()));
  std::optional<HeadView> view = arguments->view(tensor, batch, head, bytesOf(element));
  if (!view) return op.emitOpError("unknown tensor '") << tensor << "'";
  emitStoreTile(e, panels(op.getTile()),
                {*view, element, e.toI64(scalar(op.getRow())), arguments->length(tensor), rowVector});
  return success();
}

LogicalResult KernelLowering::lowerDot(tw::DotOp op) {
  DotOptions options;
  options.transposeB = op.getTransposeB();
  options.accumulate = static_cast<bool>(op.getAcc());
  // Products with a transposed right side make scores, where a NaN must show; the others weigh rows.
  options.skipZeros = !op.getTransposeB();
  Value result = op.getResult();
  if (scalesOnTheWay(result)) options.factor = arguments->scale();

  TileBuffer to = op.getAcc() ? claim(op.getAcc(), op) : storage->allocate(op.getResult().getType(), true);
  Tile &right = tiles[op.getB()];
  if (!right.rows) return op.emitOpError("right operand must be a loaded tile");
  emitDot(e, panels(op.getA()), right.rows, to, options);
  assign(result, to);
  return success();
}

LogicalResult KernelLowering::lowerUpdate(tw::SoftmaxUpdateOp op) {
  TileBuffer m = claim(op.getM(), op), l = claim(op.getL(), op), o = claim(op.getO(), op);
  TileBuffer p = placeOver(op.getS(), op);
  emitSoftmaxUpdate(e, m, l, o, panels(op.getS()), p);
  assign(op.getMNext(), m);
  assign(op.getLNext(), l);
  assign(op.getONext(), o);
  assign(op.getP(), p);
  return success();
}

bool KernelLowering::scalesOnTheWay(Value product) {
  auto dot = product.getDefiningOp<tw::DotOp>();
  if (!dot || dot.getAcc() || !product.hasOneUse()) return false;
  auto score = dyn_cast<tw::ScoreOp>(*product.user_begin());
  return score && !score.getFn();
}

bool KernelLowering::diesAt(Value value, Operation *op) const {
  // One use, and not in a loop that would read the value again.
  return value.hasOneUse() && value.getParentBlock() == op->getBlock();
}

TileBuffer KernelLowering::placeOver(Value operand, Operation *op) {
  if (diesAt(operand, op)) return panels(operand);
  return storage->allocate(cast<tw::TileType>(operand.getType()), true);
}

TileBuffer KernelLowering::claim(Value operand, Operation *op) {
  TileBuffer place = placeOver(operand, op);
  if (place.base != panels(operand).base) emitCopy(e, panels(operand), place);
  return place;
}

} // namespace tilewright::cpu
