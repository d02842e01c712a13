#include "Sm80Scheduler.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;

namespace tilewright {

LogicalResult Sm80Scheduler::run() {
  if (accumulate && !splitsDQ()) return kernel.emitOpError("warps do not split dQ's tile into whole 16 x 16 blocks");
  begin();
  scheduleWalk();
  finish();
  return success();
}

void Sm80Scheduler::scheduleWalk() {
  bool forward = kernel.getRole() == "forward";
  useTemplates(
      forward ? ArrayRef<StringRef>{"common/Block.cuh", "common/Positions.cuh", "sm80/Softmax.cuh", "sm80/Store.cuh"}
              : ArrayRef<StringRef>{"common/Block.cuh", "common/Positions.cuh", "sm80/Centre.cuh", "sm80/Gradient.cuh",
                                    "sm80/Store.cuh"});
  if (accumulate)
    useTemplates(
        {"common/Block.cuh", "common/Positions.cuh", "sm80/Reduce.cuh", "sm80/Gradient.cuh", "sm80/Store.cuh"});
  declareConstants();
  b.name("shared", b.value("tw::sharedBase", {}, b.object("tw::UInt32")));
  namePlace();

  // Owned tiles, sources and the walk.
  llvm::SmallVector<Value> ownSources;
  for (tw::LoadOp load : ownLoads)
    if (isTile(load)) {
      ownSources.push_back(nameSource(load, ownsKV || isQSide(load.getTensor()) ? head : kvHead()));
      std::string suffix = suffixOf(load.getTensor());
      ownTiles[load.getTensor()] = b.variable("tile" + suffix, "Tile" + suffix,
                                              {b.expression("shared + kOffset" + suffix, {}, b.object("tw::UInt32"))});
    }
  if (!ownsKV)
    for (tw::LoadOp load : walkedLoads)
      walkedSources[load.getTensor()] = nameSource(load, kvHead());
  declareWalk();
  queue = b.variable("queue", "tw::VisitQueue<kStages>");
  copyOwned(ownSources);
  auto prologue = tw::UnrollOp::create(b, options.stages - 1, "stage");
  b.inside(prologue, [&](Block &body) {
    Value stage = body.addArgument(b.i32(), b.getLoc());
    copyNextVisit(b.expression("queue.visits[$0]", {stage}, b.object("tw::TileVisit")), stage);
  });

  for (Operation &op : kernel.getBody().front())
    if (&op != loop && !(isa<scf::ForOp>(op)))
      lowerOutside(op);
    else
      lowerLoop();
}

void Sm80Scheduler::namePlace() {
  if (options.columnWarps == 1 && !accumulate) {
    warpRow = b.name("warpRow", b.expression("tw::warpIndex() * kWarpRows", {}, b.i32()));
  } else {
    Value warp = b.name("warp", b.expression("tw::warpIndex()", {}, b.i32()));
    warpIndex = warp;
    rowWarp = b.name("rowWarp", b.expression("$0 % kRowWarps", {warp}, b.i32()));
    columnWarp = b.name("columnWarp", b.expression("$0 / kRowWarps", {warp}, b.i32()));
    warpRow = b.name("warpRow", b.expression("$0 * kWarpRows", {rowWarp}, b.i32()));
    warpCol = b.name("warpCol", b.expression("$0 * kWarpCols", {columnWarp}, b.i32()));
  }
  nameBlock();
  ownRow = b.name(ownsKV ? "k0" : "q0", b.multiply(b.field(block, "tile", b.i32()), b.constant(ownRows)));
}

void Sm80Scheduler::copyOwned(ArrayRef<Value> sources) {
  unsigned index = 0;
  for (tw::LoadOp load : ownLoads)
    if (isTile(load))
      b.call("tw::copyTileAsync", {ownTiles[load.getTensor()], sources[index++], ownRow, seqOf(load.getTensor())});
    else
      b.call("tw::copyRowsAsync",
             {ringRows(load.getTensor(), b.constant(0)), rowsOf(load.getTensor(), head), ownRow, b.length("seqQ")},
             "kThreads, kTileQ");
  if (options.stages == 1) { // a block without visits must not store results under copies still in flight
    b.call("tw::commitCopies", {});
    b.assign(b.expression("queue.visits[0]", {}, b.object("tw::TileVisit")), nextVisit());
  }
}

void Sm80Scheduler::copyNextVisit(Value visit, Value slot) {
  b.assign(visit, nextVisit());
  b.ifTrue(b.value(".valid", {visit}, b.getI1Type()), [&] { copyVisit(visit, slot); });
  b.call("tw::commitCopies", {});
}

void Sm80Scheduler::copyVisit(Value visit, Value slot) {
  Value row = b.multiply(b.field(visit, "tile", b.i32()), b.constant(walkRows));
  Value qHead = ownsKV ? visitHead(visit) : head;
  for (tw::LoadOp load : walkedLoads) {
    StringRef tensor = load.getTensor();
    if (isTile(load)) {
      Value from = ownsKV ? nameSource(load, qHead) : walkedSources[tensor];
      b.call("tw::copyTileAsync", {ringTile(tensor, slot), from, row, seqOf(tensor)});
    } else {
      b.call("tw::copyRowsAsync", {ringRows(tensor, slot), rowsOf(tensor, qHead), row, b.length("seqQ")},
             "kThreads, kTileQ");
    }
  }
}

void Sm80Scheduler::lowerLoop() {
  bool ring = options.stages > 1;
  Value slot = b.constant(0), freeSlot = slot;
  if (ring) {
    slot = b.name("slot", slot);
    freeSlot = b.name("freeSlot", b.expression("kStages - 1", {}, b.i32()));
  }
  if (centres()) {
    rowSums = b.variable("rowSums", "tw::RowSums<kWarpRows>");
    b.call(".clear", {rowSums});
  }
  Value front = b.expression("queue.front()", {}, b.object("tw::TileVisit"));
  if (forwardQueryInRegisters()) {
    b.call("tw::waitCopies", {}, "kStages - 2");
    b.call("__syncthreads", {});
    queryOperand =
        b.name("operandQ", b.value("tw::loadOperand", {ownTiles["q"], warpRow}, b.object("auto"), "kWarpRows"));
  }
  makeScores();
  bindCarried();
  b.whileTrue(b.value(".valid", {front}, b.getI1Type()), [&] {
    if (ring) {
      b.call("tw::waitCopies", {}, "kStages - 2");
      b.call("__syncthreads", {});
      copyNextVisit(b.expression("queue.visits[kStages - 1]", {}, b.object("tw::TileVisit")), freeSlot);
    } else {
      b.call("__syncthreads", {});
      copyVisit(front, slot);
      b.call("tw::commitCopies", {});
      b.call("tw::waitCopies", {}, "0");
      b.call("__syncthreads", {});
    }
    if (takesPlaceInLoop()) takePlaceAnew();
    for (tw::LoadOp load : walkedLoads)
      if (isTile(load))
        ringTiles[load.getTensor()] = b.name("tile" + suffixOf(load.getTensor()), ringTile(load.getTensor(), slot));
    walkRow = b.multiply(b.field(front, "tile", b.i32()), b.constant(walkRows));
    if (options.columnWarps > 1) walkRow = b.add(walkRow, warpCol);
    walkRow = b.name(ownsKV ? "q0" : "k0", walkRow);
    visit = front;
    currentSlot = slot;
    // Asked ahead of the products, behind which the answer's way through shared memory hides.
    if (kernel.getRole() != "forward" && !hasScoreFunction()) coarse = b.name("coarse", findCoarse());
    for (Operation &op : loop.getBody().front())
      lowerInside(op);
    if (!ring) {
      b.assign(b.expression("queue.visits[0]", {}, b.object("tw::TileVisit")), nextVisit());
      return;
    }
    b.call(".pop", {queue});
    b.assign(freeSlot, slot);
    b.assign(slot, b.expression("$0 + 1 == kStages ? 0 : $0 + 1", {slot}, b.i32()));
  });
}

void Sm80Scheduler::bindCarried() {
  auto overHeads = dyn_cast<scf::ForOp>(loop->getParentOp());
  ValueRange starts = overHeads ? ValueRange(overHeads.getInitArgs()) : ValueRange(loop.getInits());
  for (auto [i, start] : llvm::enumerate(starts)) {
    Value object = makeCarried(i, cast<tw::TileType>(start.getType()));
    objects[loop.getBody().front().getArgument(2 + i)] = object;
    objects[loop.getResult(i)] = object;
    if (overHeads) objects[overHeads.getResult(i)] = object;
  }
}

Value Sm80Scheduler::makeCarried(unsigned index, tw::TileType type) {
  if (type.getCols() == 1) { // the running maximum and sum are one object
    if (!stats) {
      stats = b.variable("stats", "tw::RowStats<kWarpRows>");
      b.call(".clear", {stats});
    }
    return stats;
  }
  if (kernel.getRole() == "forward") return makeAccumulator("o", "kOwnV");
  if (kernel.getRole() == "dq") return makeAccumulator("dq", "kOwnQK");
  return index == 0 ? makeAccumulator("dk", "kOwnQK") : makeAccumulator("dv", "kOwnV");
}

Value Sm80Scheduler::makeAccumulator(StringRef identifier, const std::string &cols) {
  Value object = b.variable(identifier, fmt::format("tw::Accumulator<kWarpRows, {}>", cols));
  b.call(".clear", {object});
  return object;
}

void Sm80Scheduler::makeScores() {
  if (scores) return;
  if (hasScoreFunction()) {
    scores = b.variable("scores", "tw::NaturalScores");
    return;
  }
  Value scale = b.argument("scale", b.getF32Type());
  scores = kernel.getRole() == "forward"
               ? b.name("scores", b.value("tw::makeRawScores", {scale}, b.object("tw::RawScores")))
               : b.name("scores", b.value("tw::makeRawGradients", {scale}, b.object("tw::RawGradients")));
}

} // namespace tilewright
