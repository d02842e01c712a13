#include "Sm80Scheduler.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace tilewright {

void Sm80Scheduler::lowerOutside(Operation &op) {
  llvm::TypeSwitch<Operation *>(&op)
      .Case([&](tw::SoftmaxFinishOp finish) {
        redecode();
        b.call("tw::finishRows", {objects[finish.getO()], stats, scores});
        objects[finish.getOResult()] = objects[finish.getO()];
      })
      .Case([&](tw::ScaleOp scale) {
        redecode();
        if (centres()) centre(objects[scale.getX()]);
        b.call(".scaleBy", {objects[scale.getX()], b.argument("scale", b.getF32Type())});
        objects[scale.getResult()] = objects[scale.getX()];
      })
      .Case([&](tw::StoreOp store) { lowerStore(store); });
}

void Sm80Scheduler::centre(Value dq) {
  drain();
  Value row = b.expression("shared + kOffsetK", {}, b.object("tw::UInt32"));
  sampleMeanKey(row, ownRow, loop.getBoundsAttr(), maskFunction);
  b.call("__syncthreads", {});
  b.call("tw::subtractRowSums", {dq, rowSums, row, b.constant(0)});
}

void Sm80Scheduler::drain() {
  if (drained) return;
  b.call("tw::waitCopies", {}, "0");
  b.call("__syncthreads", {});
  drained = true;
}

void Sm80Scheduler::redecode() {
  if (!ownsKV || wideFused()) takePlaceAnew();
}

void Sm80Scheduler::takePlaceAnew() {
  b.assign(block, decodeBlock());
  b.assign(ownRow, b.multiply(b.field(block, "tile", b.i32()), b.constant(ownRows)));
}

void Sm80Scheduler::lowerStore(tw::StoreOp store) {
  StringRef tensor = store.getTensor();
  Value row = b.add(ownRow, warpRow);
  if (tensor == "lse") {
    b.call("tw::storeLse", {rowsOf("lse", head), stats, row, b.length("seqQ")});
    return;
  }
  if (tensor == "lse_rest") {
    b.ifTrue(b.expression("args.lseRest", {}, b.getI1Type()), [&] {
      b.call("tw::storeLseRest", {rowsOf("lse_rest", head), stats, row, b.length("seqQ")});
    });
    return;
  }
  drain();
  Value stage = ownTiles[tensor == "dk" ? "k" : tensor == "dv" ? "v" : "q"], column = b.constant(0);
  if (options.columnWarps > 1) column = b.expression("$0 * kOwn" + dimOf(tensor), {columnWarp}, b.i32());
  b.call("tw::storeTile",
         {headOf(tensor, head), strideOf(tensor), objects[store.getTile()], row, ownLength(), column, stage, warpRow,
          column},
         "kDim" + dimOf(tensor));
}

} // namespace tilewright
