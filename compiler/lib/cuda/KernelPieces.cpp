#include "KernelPieces.h"

#include "llvm/ADT/StringSwitch.h"

using namespace mlir;

namespace tilewright {

KernelPieces::KernelPieces(tw::KernelOp kernel, const ScheduleOptions &options)
    : kernel(kernel), options(options), b(kernel.getLoc(), kernel),
      ownsKV(kernel.getRole() == "dkv" || kernel.getRole() == "fused"), ownRows(kernel.getOwnRows()),
      walkRows(kernel.getWalkRows()), group(kernel.getGroup()), ownSpan(ownRows / options.packedHeads) {
  kernel.walk([&](tw::ForeachTileOp op) { loop = op; });
  kernel.walk([&](tw::AccumulateOp op) { accumulate = op; });
  kernel.walk([&](tw::LoadOp load) {
    if (load.getTensor() == "lse_rest") return; // rarely needed, and then read where it lies
    (load->getParentOp() == kernel ? ownLoads : walkedLoads).push_back(load);
  });
}

void KernelPieces::begin() {
  machine = tw::CudaKernelOp::create(b, kernel.getSymName(), options.warps * 32, options.minBlocks,
                                     b.getStrArrayAttr({}), b.getStrArrayAttr({}), StringAttr());
  b.createBlock(&machine.getBody());
}

void KernelPieces::finish() {
  tw::YieldOp::create(b);
  SmallVector<StringRef> lines(declarations.begin(), declarations.end());
  machine.setDeclarationsAttr(b.getStrArrayAttr(lines));
  kernel.erase();
}

StringRef KernelPieces::argumentOf(StringRef tensor) {
  return llvm::StringSwitch<StringRef>(tensor)
      .Case("lse_rest", "lseRest")
      .Case("do", "dO")
      .Case("dq", "dQ")
      .Case("dk", "dK")
      .Case("dv", "dV")
      .Default(tensor);
}

const char *KernelPieces::elementName(Type stored) {
  return stored.isBF16() ? "tw::BF16" : stored.isF16() ? "tw::F16" : "tw::F32";
}

Type KernelPieces::storedType() {
  for (tw::LoadOp load : ownLoads)
    if (isTile(load)) return load.getTile().getType().getElementType();
  return b.getF32Type();
}

int64_t KernelPieces::dim(StringRef tensor) {
  for (auto *loads : {&ownLoads, &walkedLoads})
    for (tw::LoadOp load : *loads)
      if (isTile(load) && hasDimQK(load.getTensor()) == hasDimQK(tensor)) return load.getTile().getType().getCols();
  llvm_unreachable("every kernel loads q, k, v or o");
}

bool KernelPieces::hasScoreFunction() {
  bool found = false;
  kernel.walk([&](tw::ScoreOp score) { found |= score.getFn().has_value(); });
  return found;
}

Value KernelPieces::decodeBlock() {
  Value heads = b.length(ownsKV || options.packedHeads > 1 ? "headsKV" : "headsQ");
  Value tiles = b.expression(fmt::format("($0 + {0} - 1) / {0}", ownSpan), {ownLength()}, b.i32());
  return b.value("tw::decodeBlock", {heads, tiles}, b.object("tw::Block"), options.longestFirst ? "true" : "false");
}

void KernelPieces::nameBlock() {
  block = b.name("block", decodeBlock());
  head = b.field(block, "head", b.i32());
  batch = b.field(block, "batch", b.i32());
}

Value KernelPieces::headOf(StringRef tensor, Value ofHead) {
  Value argument = b.argument(argumentOf(tensor), b.object("tw::Tensor"));
  return b.value("tw::headOf", {argument, ofHead, batch}, b.object("Element *"), "Element");
}

Value KernelPieces::strideOf(StringRef tensor) {
  return b.expression(fmt::format("args.{}.rowStride", argumentOf(tensor).str()), {}, b.getI64Type());
}

Value KernelPieces::rowsOf(StringRef tensor, Value ofHead) {
  Value argument = b.argument(argumentOf(tensor), b.object("float *"));
  return b.expression("tw::rowsOf($0, args, $1, $2)", {argument, ofHead, batch}, b.object("float *"));
}

Value KernelPieces::sumsOf(Value ofHead, Value tile, int64_t rows) {
  Value tiles = b.expression(fmt::format("($0 + {0} - 1) / {0}", rows), {b.length("seqQ")}, b.i32());
  return b.expression("tw::sumsOf<kTileQ * kColsSums>(args.dqSums, args, $0, $1, $2, $3)", {ofHead, batch, tiles, tile},
                      b.object("float *"));
}

Value KernelPieces::pairLambda(const std::string &parameters, std::string value, Value qHead) {
  const int64_t heads = options.packedHeads;
  std::string row = parameters, ofHead = "$0", opening;
  if (heads > 1) {
    row.replace(row.find("int q"), 5, "int row");
    opening = fmt::format("const int q = $2 + row / {0}, h = $0 * {0} + row % {0}; ", heads);
    ofHead = "h";
  }
  if (size_t at = value.find("{head}"); at != std::string::npos) value.replace(at, 6, ofHead);
  SmallVector<Value> operands = {qHead, batch};
  if (heads > 1) operands.push_back(ownRow);
  return b.expression(fmt::format("[&]({}) {{ {}return {}; }}", row, opening, value), operands, b.object("auto"));
}

Value KernelPieces::visibleLambda(FlatSymbolRefAttr mask, Value qHead) {
  // One & where both sides are cheap: short-circuits of every pair of a tile cost the optimizer time.
  std::string text = ownsKV ? "(q < args.seqQ & k < args.seqKV)" : "k < args.seqKV";
  if (mask) text += fmt::format(" && {}(args, q, k, args.seqQ, args.seqKV, {{head}}, $1)", mask.getValue().str());
  return pairLambda("int q, int k", text, qHead);
}

Value KernelPieces::scoreLambda(FlatSymbolRefAttr score, Value qHead) {
  return pairLambda("float s, int q, int k",
                    fmt::format("{}(args, s, q, k, args.seqQ, args.seqKV, {{head}}, $1)", score.getValue().str()),
                    qHead);
}

Value KernelPieces::dualLambda(FlatSymbolRefAttr score, FlatSymbolRefAttr gradient, Value qHead) {
  auto call = [](FlatSymbolRefAttr fn) {
    return fmt::format("{}(args, s, q, k, args.seqQ, args.seqKV, $0, $1)", fn.getValue().str());
  };
  return b.expression(
      fmt::format("[&](float s, int q, int k) {{ return tw::ScoreDual{{{}, {}}}; }}", call(score), call(gradient)),
      {qHead, batch}, b.object("auto"));
}

void KernelPieces::sampleMeanKey(Value to, Value row, FlatSymbolRefAttr bounds, FlatSymbolRefAttr mask) {
  Value last = b.expression(fmt::format("min($0 + {}, args.seqQ) - 1", ownRows), {row}, b.i32());
  Value found = b.expression(fmt::format("{}(args, $0, $1, args.seqQ, args.seqKV, $2, $3)", bounds.getValue().str()),
                             {row, last, head, batch}, b.object("tw::PositionBounds"));
  b.call("tw::sampleMeanRow", {to, headOf("k", kvHead()), strideOf("k"), found, last, visibleLambda(mask, head)},
         "kThreads, kDimQK");
}

void KernelPieces::declareWalk() {
  if (!ownsKV || group == 1) {
    walk = b.name("walk", walkFor(head));
    return;
  }
  Value first = b.name("firstHead", b.multiply(head, b.constant(group)));
  Value lambdaHead = b.expression("qHead", {}, b.i32());
  Value walkOf = b.expression("[&](int qHead) { return $0; }", {walkFor(lambdaHead)}, b.object("auto"));
  Value last = b.add(first, b.constant(group));
  walk = b.name("walk", b.expression("tw::GroupWalk($0, $1, $2)", {first, last, walkOf}, b.object("auto")));
}

Value KernelPieces::walkFor(Value qHead) {
  std::string bounds = loop.getBounds().str(), rows = std::to_string(ownSpan), walked = std::to_string(walkRows);
  const int64_t parts = kernel.getParts();
  if (loop.getInterval()) {
    std::string call = fmt::format("{}(args, $0, $0 + {} - 1, args.seqQ, args.seqKV, $1, $2)", bounds, rows);
    // dK and dV of rows past the end must not be touched by what they multiply: such a tile is never full.
    if (ownsKV) call = fmt::format("tw::nothingFullUnless($0 + {} <= args.seqKV, {})", rows, call);
    std::string span = fmt::format("tw::tilesOf<{}>({})", walked, call);
    if (parts > 1) span = fmt::format("tw::partOf<{}>({}, block.part)", parts, span);
    return b.expression(fmt::format("tw::IntervalWalk({})", span), {ownRow, qHead, batch}, b.object("auto"));
  }
  std::string own = fmt::format("$0, $0 + {} - 1", rows), walk = fmt::format("i * {0}, i * {0} + {0} - 1", walked);
  // The class is asked for the head that the walk passes on.
  std::string call = fmt::format("{}(args, {}, {}, args.seqQ, args.seqKV, head, $2)", loop.getClasses()->str(),
                                 ownsKV ? walk : own, ownsKV ? own : walk);
  std::string inside = ownsKV ? fmt::format("$0 + {} <= args.seqKV && i * {} + {} <= args.seqQ", rows, walked, walked)
                              : fmt::format("i * {} + {} <= args.seqKV", walked, walked);
  // Parts are equal shares of all tiles here: which the mask leaves empty is found out on the way.
  std::string tiles = fmt::format("($3 + {0} - 1) / {0}", walked), first = "0";
  if (parts > 1) {
    first = fmt::format("{} * block.part / {}", tiles, parts);
    tiles = fmt::format("{} * (block.part + 1) / {}", tiles, parts);
  }
  return b.expression(
      fmt::format("tw::ClassifiedWalk({}, {}, $1, [&](int i, int head) {{ return tw::insideOnly({}, {}); }})", first,
                  tiles, inside, call),
      {ownRow, qHead, batch, walkLength()}, b.object("auto"));
}

} // namespace tilewright
