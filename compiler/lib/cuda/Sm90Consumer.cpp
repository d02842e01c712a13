#include "Sm90Scheduler.h"
#include <algorithm>
#include <cmath>

using namespace mlir;

namespace tilewright {

Value Sm90Scheduler::threshold(double log2) {
  return arith::ConstantOp::create(b, b.getF32FloatAttr(static_cast<float>(log2)));
}

Value Sm90Scheduler::keyDescriptor() {
  return b.expression("tw::alongLines(shared + kOffsetK + $0 * TileK::bytes)", {b.field(ringK, "slot", b.i32())},
                      b.object("tw::UInt64"));
}

Value Sm90Scheduler::valueDescriptor() {
  return b.expression("tw::acrossLines<TileV::chunkBytes>(shared + kOffsetV + $0 * TileV::bytes)",
                      {b.field(ringV, "slot", b.i32())}, b.object("tw::UInt64"));
}

void Sm90Scheduler::consume() {
  b.call("tw::raiseRegisters", {}, std::to_string(registers().consumer));
  warpRow = b.name("warpRow", b.expression("tw::warpIndex() * 16", {}, b.i32()));
  if (hopper.overlapsBetween) // group 0 goes first
    b.ifTrue(b.expression("$0 == kGroups - 1", {group}, b.getI1Type()),
             [&] { b.call("tw::arriveNamed", {b.constant(1)}, "256"); });
  if (hasScoreFunction())
    scores = b.variable("scores", "tw::NaturalScores");
  else
    scores = b.name("scores",
                    b.value("tw::makeRawScores", {b.argument("scale", b.getF32Type())}, b.object("tw::RawScores")));
  takeFirstTile(groupsDiffer());
  skipUnseenTiles();
  b.whileTrue(blockIsValid(), [&] {
    startTile();
    b.whileTrue(visitIsValid(), [&] {
      if (!isLazy()) {
        step(/*masked=*/true);
        return;
      }
      // Most tiles are visible as a whole: their loop holds nothing else. Which loop a visit takes depends on nothing
      // that the warps of a group may differ in, since they issue products together.
      Value hot = b.expression("$0 & !visit.partial & !first", {visitIsValid()}, b.getI1Type());
      b.whileTrue(hot, [&] { step(/*masked=*/false); });
      b.ifTrue(visitIsValid(), [&] { step(/*masked=*/true); });
    });
    finishTile();
    takeTile();
    skipUnseenTiles();
  });
  if (storesByCopyEngine())
    b.ifTrue(b.expression("threadIdx.x % 32 == 0", {}, b.getI1Type()), [&] { b.call("tw::waitStores", {}); });
}

void Sm90Scheduler::passVisits(const char *which) {
  if (groupsDiffer())
    b.call("tw::passVisits", {ringK, ringV, b.expression(which, {}, b.i32()), group},
           fmt::format("{}, kGroups", hopper.overlapsBetween));
}

/// Tiles whose every key is hidden take no part in the rings; where others of the tile's rows see some, their visits
/// pass. The first visit of a tile is nobody's turn.
void Sm90Scheduler::skipUnseenTiles() {
  Value unseenTile = b.expression("block.tile >= 0 && !$0", {visitIsValid()}, b.getI1Type());
  b.whileTrue(unseenTile, [&] {
    storeUnseen();
    if (groupsDiffer())
      b.ifTrue(b.expression("walk.before > 0", {}, b.getI1Type()), [&] {
        b.call(".waitFull", {ringQ});
        b.call(".release", {ringQ});
        b.call("tw::passVisits", {ringK, ringV, b.constant(1), group}, "false, kGroups");
        passVisits("walk.before - 1");
      });
    takeTile();
  });
}

void Sm90Scheduler::startTile() {
  rows = b.variable("rows", "tw::OnlineRows");
  b.call(".clear", {rows});
  o = b.variable("o", fmt::format("tw::Accumulator<16, {}>", (dim("v") + 15) / 16 * 16));
  b.call(".clear", {o});
  s = b.variable("s", "tw::Accumulator<16, kTileKV>");
  p = b.variable("p", "tw::Probabilities<Element, kTileKV>");
  b.call(".waitFull", {ringQ});
  queryDescriptor =
      b.name("queryDescriptor", b.expression("tw::alongLines(shared + kOffsetQ + $0 * TileQ::bytes + $1 * 64 * 128)",
                                             {b.field(ringQ, "slot", b.i32()), group}, b.object("tw::UInt64")));
  passVisits("walk.before");
  first = b.name("first", b.expression("true", {}, b.getI1Type()));
  if (isLazy()) bound = b.name("bound", threshold(0));
}

void Sm90Scheduler::afterFirst(bool masked, llvm::function_ref<void()> body) {
  if (!masked) return body();
  b.ifTrue(b.expression("!$0", {first}, b.getI1Type()), body);
}

void Sm90Scheduler::issueProducts(bool masked) {
  b.call(".waitFull", {ringK});
  if (masked)
    b.ifTrue(first, [&] {
      b.call("multiplyQK", {s, queryDescriptor, keyDescriptor()});
      if (hopper.overlapsWithin) b.call("tw::commitNoProduct", {}); // what waitScoresFirst leaves in flight
    });
  afterFirst(masked, [&] {
    if (hopper.overlapsBetween) b.call("tw::syncNamed", {b.expression("1 + $0", {group}, b.i32())}, "256");
    b.call("multiplyQK", {s, queryDescriptor, keyDescriptor()});
    b.call(".waitFull", {ringV});
    b.call("multiplyPV", {o, p, valueDescriptor()});
    if (hopper.overlapsBetween)
      b.call("tw::arriveNamed", {b.expression("1 + ($0 + 1) % kGroups", {group}, b.i32())}, "256");
  });
}

void Sm90Scheduler::step(bool masked) {
  issueProducts(masked);
  auto releaseV = [&] { b.call(".release", {ringV}); };
  if (hopper.overlapsWithin) {
    b.call("waitScoresFirst", {s});
  } else {
    b.call("waitBoth", {s, o, p});
    afterFirst(masked, releaseV);
  }
  // The exact way reads K's slot no more; the lazy one may.
  if (masked) b.call(".release", {ringK});
  scoreVisit(masked);
  if (masked) {
    exactSoftmax();
    if (isLazy()) b.assign(bound, sumBound());
  } else {
    lazySoftmax();
    b.call(".release", {ringK});
  }
  if (hopper.overlapsWithin) {
    b.call("waitOutput", {o, p});
    afterFirst(masked, releaseV);
  }
  if (masked) b.ifTrue(moved, [&] { b.call("tw::scaleRows", {o, b.field(rows, "factor", b.object("float *"))}); });
  b.call(".round", {p, s});
  if (masked) b.assign(first, b.expression("false", {}, b.getI1Type()));
  b.assign(visit, nextVisit());
}

void Sm90Scheduler::scoreVisit(bool masked) {
  tw::ScoreOp score;
  loop.walk([&](tw::ScoreOp op) { score = op; });
  Value scale = b.argument("scale", b.getF32Type());
  if (score.getFn())
    b.call("tw::applyScore", {s, scale, rowPosition(), visitRow(), scoreLambda(score.getFnAttr(), head)});
  else // The maximum is taken before scaling, which needs a positive scale: any other moves into the products.
    b.ifTrue(b.expression("!($0 > 0.f)", {scale}, b.getI1Type()), [&] {
      b.call(".scaleBy", {s, b.value("tw::signOfScale", {scale}, b.getF32Type())});
    });
  if (masked) maskVisit();
}

void Sm90Scheduler::maskVisit() {
  tw::MaskOp mask;
  loop.walk([&](tw::MaskOp op) { mask = op; });
  b.ifTrue(b.field(visit, "partial", b.getI1Type()), [&] {
    b.call("tw::applyMask", {s, rowPosition(), visitRow(), visibleLambda(mask.getFnAttr(), head)});
  });
}

void Sm90Scheduler::exactSoftmax() {
  moved = b.name("moved",
                 b.value("tw::updateMaxima", {s, rows, scores, threshold(options.rescaleThreshold)}, b.getI1Type()));
  sums = b.variable("sums", "tw::RowPair");
  b.call("tw::exponentiate", {s, sums, rows, scores});
  b.call(".add", {rows, sums});
}

/// What probabilities may add up to before the maxima are looked at: fp16 holds 65504.
Value Sm90Scheduler::sumBound() {
  double most = std::exp2(std::min(15.0, options.rescaleThreshold + 7));
  return b.value(".sumBound", {rows, scores, threshold(most)}, b.getF32Type());
}

void Sm90Scheduler::lazySoftmax() {
  sums = b.variable("sums", "tw::RowPair");
  b.call("tw::exponentiate", {s, sums, rows, scores});
  b.ifTrue(b.value("tw::outgrew", {sums, bound}, b.getI1Type()), [&] {
    if (hopper.overlapsWithin) b.call("waitOutput", {o, p});
    b.call("tw::recomputeScores",
           {s,
            b.expression("shared + kOffsetQ + $0 * TileQ::bytes + $1 * 128", {b.field(ringQ, "slot", b.i32()), warpRow},
                         b.object("tw::UInt32")),
            b.expression("shared + kOffsetK + $0 * TileK::bytes", {b.field(ringK, "slot", b.i32())},
                         b.object("tw::UInt32"))},
           "Element, TileQ, TileK");
    scoreVisit(/*masked=*/false);
    b.call("tw::updateMaxima", {s, rows, scores, threshold(0)});
    b.call("tw::scaleRows", {o, b.field(rows, "factor", b.object("float *"))});
    b.call("tw::exponentiate", {s, sums, rows, scores});
    b.assign(bound, sumBound());
  });
  b.call(".add", {rows, sums});
}

void Sm90Scheduler::finishTile() {
  b.call(".waitFull", {ringV});
  b.call("multiplyPV", {o, p, valueDescriptor()});
  b.call(".release", {ringQ});
  b.call("waitOutput", {o, p});
  b.call(".release", {ringV});
  passVisits("walk.after");
  b.call("tw::finishRows", {o, rows, scores});
  storeResults();
}

Value Sm90Scheduler::rowOwner() {
  return b.expression("tw::RowOwner<kHeads>($0, kTileQ, $1, $2, args.seqQ)", {ownRow, head, batch}, b.object("auto"));
}

Value Sm90Scheduler::stateOfPart() {
  return b.expression("tw::State<kTileQ, kDimV>(args.partials, (tw::Int64($1) * launch.grid.heads + $0) * "
                      "launch.grid.tiles + block.tile, block.part, kParts)",
                      {head, batch}, b.object("auto"));
}

void Sm90Scheduler::storeUnseen() {
  Value args = b.expression("args", {}, b.object("tw::Args"));
  if (isSplit())
    b.call("tw::storeEmptyState", {stateOfPart(), warpRow, b.field(rowOwner(), "rows", b.i32())});
  else if (isPacked())
    b.call("tw::storePackedUnseen", {args, rowOwner(), warpRow}, "Element, kDimV");
  else
    b.call("tw::storeUnseen", {args, rowPosition(), head, batch}, "Element, kDimV");
}

void Sm90Scheduler::storeResults() {
  if (isSplit()) {
    b.call("tw::storeState", {stateOfPart(), o, rows, warpRow, b.field(rowOwner(), "rows", b.i32())});
    return;
  }
  if (isPacked()) {
    Value args = b.expression("args", {}, b.object("tw::Args"));
    b.call("tw::storePacked", {args, rowOwner(), o, rows, warpRow}, "Element, kDimV");
    return;
  }
  Value stage = b.expression("shared + kOffsetO + tw::warpIndex() * (kStagedChunks * tw::kStagedChunkBytes)", {},
                             b.object("tw::UInt32"));
  b.call("tw::storeOutput",
         {b.expression("launch.o", {}, b.object("tw::TensorMap")), o, stage, rowPosition(), head, batch},
         "Element, kStagedChunks");
  Value length = b.length("seqQ");
  b.call("tw::storeRowPair", {rowsOf("lse", head), b.field(rows, "max", b.object("float *")), rowPosition(), length});
  b.ifTrue(b.expression("args.lseRest", {}, b.getI1Type()), [&] {
    b.call("tw::storeRowPair",
           {rowsOf("lse_rest", head), b.field(rows, "sum", b.object("float *")), rowPosition(), length});
  });
}

} // namespace tilewright
