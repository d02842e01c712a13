#include "Sm80Scheduler.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace tilewright {

void Sm80Scheduler::lowerInside(Operation &op) {
  llvm::TypeSwitch<Operation *>(&op)
      .Case([&](tw::DotOp dot) { lowerDot(dot); })
      .Case([&](tw::ScoreOp score) { lowerScore(score); })
      .Case([&](tw::MaskOp mask) { lowerMask(mask); })
      .Case([&](tw::SoftmaxUpdateOp update) {
        Value threshold = arith::ConstantOp::create(b, b.getF32FloatAttr(static_cast<float>(options.rescaleThreshold)));
        b.call("tw::onlineSoftmax", {objects[update.getS()], objects[update.getO()], stats, scores, threshold});
        objects[update.getP()] = objects[update.getS()];
        objects[update.getONext()] = objects[update.getO()];
      })
      .Case([&](tw::ProbabilityOp p) { lowerProbability(p); })
      .Case([&](tw::SoftmaxGradientOp gradient) {
        Value dp = objects[gradient.getDp()], p = objects[gradient.getP()];
        b.call(ownsKV ? "tw::scoreGradientsTransposed" : "tw::scoreGradients", {dp, p, warpRowValues("delta")});
        objects[gradient.getDs()] = dp;
      })
      .Case([&](tw::ScoreGradientOp gradient) {
        objects[gradient.getResult()] = objects[gradient.getDs()]; // the slopes are in p already
      })
      .Case([&](tw::AccumulateOp op) { lowerAccumulate(op); });
}

void Sm80Scheduler::lowerAccumulate(tw::AccumulateOp op) {
  if (options.columnWarps == 1) b.call("__syncthreads", {});
  Value warp = warpIndex;
  if (!wideFused()) warp = b.name("warpDQ", b.expression("tw::warpIndex()", {}, b.i32()));
  Value rowDQ = b.name("rowDQ", b.expression("$0 % kRowWarpsDQ * kRowsDQ", {warp}, b.i32()));
  Value colDQ = b.name("colDQ", b.expression("$0 / kRowWarpsDQ * kColsDQ", {warp}, b.i32()));
  Value dq = b.variable("dq", "tw::Accumulator<kRowsDQ, kColsDQ>");
  b.call(".clear", {dq});
  b.call("tw::multiplyFromTransposed", {dq, gradientTile, rowDQ, ownTiles["k"], colDQ});
  Value sums = b.name("sums", sumsOf(visitHead(visit), b.field(visit, "tile", b.i32()), walkRows));
  b.call("tw::reduceTile", {sums, dq, rowDQ, colDQ}, "kColsSums");
  if (!op.getCentred()) return;
  b.ifTrue(b.expression("$0 == 0", {colDQ}, b.getI1Type()), [&] {
    Value ofRows = b.variable("rowSums", "tw::RowSums<kRowsDQ>");
    b.call(".clear", {ofRows});
    b.call("tw::addRowSumsFromTransposed", {ofRows, gradientTile, rowDQ});
    b.call("tw::reduceRowSums", {sums, ofRows, rowDQ, b.expression("kPadQK", {}, b.i32())}, "kColsSums");
  });
}

void Sm80Scheduler::lowerDot(tw::DotOp dot) {
  auto tensorOf = [](Value v) { return v.getDefiningOp<tw::LoadOp>().getTensor(); };
  if (dot.getTransposeB()) {
    StringRef left = tensorOf(dot.getA()), right = tensorOf(dot.getB());
    bool isScores = left == "q" || left == "k";
    Value sums = makeAccumulator(isScores ? "s" : "dp", "kWarpCols");
    Value column = options.columnWarps > 1 ? warpCol : b.constant(0);
    if (left == "q" && queryOperand)
      b.call("tw::multiplyTransposed", {sums, queryOperand, ringTiles[right], column});
    else
      b.call("tw::multiplyTransposed", {sums, ownTiles[left], warpRow, ringTiles[right], column});
    objects[dot.getResult()] = sums;
    return;
  }
  objects[dot.getResult()] = objects[dot.getAcc()];
  // dV waits for dS: with the slopes multiplied into P the two products follow one another.
  pendingProducts.push_back({objects[dot.getAcc()], objects[dot.getA()], tensorOf(dot.getB())});
  if (!ownsKV || tensorOf(dot.getB()) == "q") flushProducts();
}

void Sm80Scheduler::flushProducts() {
  options.columnWarps > 1 ? multiplyShared() : multiplyRegisters();
  pendingProducts.clear();
}

void Sm80Scheduler::multiplyShared() {
  for (Product &product : pendingProducts) {
    bool isP = product.right == "do";
    if (isP && probabilityTile)
      product.left = probabilityTile;
    else
      product.left = shareAmongWarps(isP ? "P" : "DS", product.left);
    if (!isP) gradientTile = product.left;
  }
  if (accumulate) // dQ's product reads dS of all warps
    b.call("__syncthreads", {});
  else
    b.call("tw::groupBarrier", {b.expression("1 + $0", {rowWarp}, b.i32())}, "kColumnWarps * 32");
  for (Product &product : pendingProducts) {
    Value column = b.expression("$0 * kOwn" + dimOf(product.right == "do" ? "v" : "q"), {columnWarp}, b.i32());
    b.call("tw::multiply", {product.sums, product.left, warpRow, ringTiles[product.right], column});
  }
}

void Sm80Scheduler::multiplyRegisters() {
  for (Product &product : pendingProducts) {
    bool isP = product.right == "do";
    Value left = isP && probabilityOperand
                     ? probabilityOperand
                     : b.name(isP ? "operandP" : "operand",
                              b.value("tw::packOperand", {product.left}, b.object("auto"), "Element"));
    if (accumulate && !isP) gradientTile = shareAmongWarps("DS", product.left);
    product.left = left;
  }
  for (Product &product : pendingProducts) {
    b.call("tw::multiply", {product.sums, product.left, ringTiles[product.right], b.constant(0)});
    if (centres()) b.call("tw::addRowSums", {rowSums, product.left});
  }
}

Value Sm80Scheduler::shareAmongWarps(const std::string &which, Value part) {
  Value tile = b.name("tile" + which, b.expression("TileS(shared + kOffset" + which + ")", {}, b.object("TileS")));
  b.call("tw::storeShared", {tile, part, warpRow, warpCol});
  return tile;
}

std::pair<Value, Value> Sm80Scheduler::positions() {
  return ownsKV ? std::pair(walkRow, rowPosition()) : std::pair(rowPosition(), walkRow);
}

void Sm80Scheduler::lowerScore(tw::ScoreOp score) {
  Value s = objects[score.getS()], scale = b.argument("scale", b.getF32Type());
  objects[score.getResult()] = s;
  auto [q, k] = positions();
  if (!score.getFn()) {
    if (kernel.getRole() != "forward") return;
    // The maximum is taken before scaling, which needs a positive scale: any other moves into the products.
    b.ifTrue(b.expression("!($0 > 0.f)", {scale}, b.getI1Type()), [&] {
      b.call(".scaleBy", {s, b.value("tw::signOfScale", {scale}, b.getF32Type())});
    });
    return;
  }
  Value qHead = ownsKV ? visitHead(visit) : head;
  if (kernel.getRole() == "forward") {
    b.call("tw::applyScore", {s, scale, q, k, scoreLambda(score.getFnAttr(), qHead)});
    return;
  }
  tw::ScoreGradientOp gradient;
  loop.walk([&](tw::ScoreGradientOp op) { gradient = op; });
  slopes = b.variable("slopes", "tw::Accumulator<kWarpRows, kWarpCols>");
  b.call(ownsKV ? "tw::applyScoreDualTransposed" : "tw::applyScoreDual",
         {s, slopes, scale, q, k, dualLambda(score.getFnAttr(), gradient.getFnAttr(), qHead)});
}

void Sm80Scheduler::lowerMask(tw::MaskOp mask) {
  Value s = objects[mask.getS()];
  objects[mask.getResult()] = s;
  maskFunction = mask.getFnAttr();
  if (kernel.getRole() != "forward") return; // applied to p: see lowerProbability
  auto [q, k] = positions();
  b.ifTrue(b.field(visit, "partial", b.getI1Type()), [&] {
    b.call("tw::applyMask", {s, q, k, visibleLambda(maskFunction, head)});
  });
}

void Sm80Scheduler::lowerProbability(tw::ProbabilityOp p) {
  Value s = objects[p.getS()];
  objects[p.getP()] = s;
  const char *probabilities = ownsKV ? "tw::probabilitiesTransposed" : "tw::probabilities";
  if (!slopes) {
    b.call(probabilities, {s, warpRowValues("lse"), prepareExponents(s)});
    return;
  }
  b.call(probabilities, {s, warpRowValues("lse"), scores});
  correctProbability(s);
  if (ownsKV) { // P itself goes to dV before the slopes enter it
    clearInvisible(s);
    if (options.columnWarps > 1)
      probabilityTile = shareAmongWarps("P", s);
    else
      probabilityOperand = b.name("operandP", b.value("tw::packOperand", {s}, b.object("auto"), "Element"));
  }
  b.call("tw::multiplyBySlopes", {s, slopes});
  clearInvisible(s); // a hidden pair's slope may be anything, even NaN
}

Value Sm80Scheduler::findCoarse() {
  std::string rows = ownsKV ? "kWarpCols" : "kWarpRows";
  return b.expression(fmt::format("tw::anyCoarse<Element, {}>($0)", rows), {warpRowValues("lse")}, b.getI1Type());
}

Value Sm80Scheduler::prepareExponents(Value s) {
  Value exponents = b.name("exponents", scores), partial = b.field(visit, "partial", b.getI1Type());
  b.ifTrue(b.expression("$0 || $1", {partial, coarse}, b.getI1Type()), [&] {
    b.ifTrue(coarse, [&] {
      auto [rest, q] = restOfLse();
      b.call(ownsKV ? "tw::takeLogProbabilitiesTransposed" : "tw::takeLogProbabilities",
             {s, b.argument("scale", b.getF32Type()), warpRowValues("lse"), rest, q, b.length("seqQ")});
      b.call(".settle", {exponents});
    });
    b.ifTrue(partial, [&] { replaceInvisible(s, b.value(".hidden", {exponents}, b.getF32Type())); });
  });
  return exponents;
}

void Sm80Scheduler::correctProbability(Value p) {
  b.ifTrue(findCoarse(), [&] {
    auto [rest, q] = restOfLse();
    b.call(ownsKV ? "tw::correctProbabilitiesTransposed" : "tw::correctProbabilities", {p, rest, q, b.length("seqQ")});
  });
}

std::pair<Value, Value> Sm80Scheduler::restOfLse() {
  const std::string ofHead = "args.lseRest ? tw::rowsOf(args.lseRest, args, {}, {}) : nullptr";
  if (ownsKV)
    return {b.expression(fmt::format(fmt::runtime(ofHead), "$0", "$1"), {visitHead(visit), batch}, b.object("float *")),
            positions().first};
  // The block's place anew: the loop has no registers to keep it in for so rare a use.
  Value place = b.name("place", decodeBlock());
  Value rest = b.expression(fmt::format(fmt::runtime(ofHead), "$0.head", "$0.batch"), {place}, b.object("float *"));
  return {rest, b.add(b.multiply(b.field(place, "tile", b.i32()), b.constant(ownRows)), warpRow)};
}

void Sm80Scheduler::clearInvisible(Value x) {
  b.ifTrue(b.field(visit, "partial", b.getI1Type()),
           [&] { replaceInvisible(x, b.expression("0.f", {}, b.getF32Type())); });
}

void Sm80Scheduler::replaceInvisible(Value x, Value by) {
  if (takesPlaceInPartialTiles()) takePlaceAnew();
  auto [q, k] = positions();
  b.call(ownsKV ? "tw::replaceInvisibleTransposed" : "tw::replaceInvisible",
         {x, by, q, k, visibleLambda(maskFunction, ownsKV ? visitHead(visit) : head)});
}

} // namespace tilewright
