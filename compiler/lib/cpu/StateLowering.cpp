// States of a walk that is cut into parts. A state lies in the workspace as it does in scratch memory, in panels, so
// that keeping one is a plain copy and reading one needs none. Rows past the sequence's end are kept too.
#include "KernelLowering.h"

#include "SoftmaxKernel.h"

using namespace mlir;

namespace tilewright::cpu {

KernelLowering::State KernelLowering::stateAt(Value batch, Value head, Value row, Value part, int64_t parts,
                                              tw::TileType o) {
  // Tiles have whole vectors of rows, so each part of a state is aligned as the workspace is.
  int64_t rows = o.getRows(), cols = o.getCols();
  Value tile = arith::DivSIOp::create(e, e.toI64(scalar(row)), e.constant(rows));
  Value start = arguments->state(e.toI64(scalar(batch)), e.toI64(scalar(head)), tile, rows, e.toI64(scalar(part)),
                                 parts, rows * (cols + 2) * 4);
  State state;
  state.m = {rows, 1, true, start, {}};
  state.l = {rows, 1, true, e.advance(start, rows * 4), {}};
  state.o = {rows, cols, true, e.advance(start, 2 * rows * 4), {}};
  return state;
}

LogicalResult KernelLowering::lowerStoreState(tw::StoreStateOp op) {
  State to = stateAt(op.getBatch(), op.getHead(), op.getRow(), op.getPart(), op.getParts(), op.getO().getType());
  emitCopy(e, panels(op.getM()), to.m);
  emitCopy(e, panels(op.getL()), to.l);
  emitCopy(e, panels(op.getO()), to.o);
  return success();
}

LogicalResult KernelLowering::lowerLoadState(tw::LoadStateOp op) {
  State from = stateAt(op.getBatch(), op.getHead(), op.getRow(), op.getPart(), op.getParts(), op.getO().getType());
  assign(op.getM(), from.m);
  assign(op.getL(), from.l);
  assign(op.getO(), from.o);
  return success();
}

LogicalResult KernelLowering::lowerMerge(tw::MergeOp op) {
  TileBuffer m = claim(op.getM(), op), l = claim(op.getL(), op), o = claim(op.getO(), op);
  emitMerge(e, m, l, o, panels(op.getOtherM()), panels(op.getOtherL()), panels(op.getOtherO()));
  assign(op.getMNext(), m);
  assign(op.getLNext(), l);
  assign(op.getONext(), o);
  return success();
}

} // namespace tilewright::cpu
