// tw-schedule-sm80: orders a tile-level kernel for GPUs with cp.async and mma.sync (Passes.td describes the schedule).
#include "MachineBuilder.h"
#include "tilewright/passes/Passes.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace tilewright {
#define GEN_PASS_DEF_SCHEDULESM80
#include "tilewright/passes/Passes.h.inc"

namespace {

struct Options {
  int64_t stages, warps, columnWarps, minBlocks;
  bool longestFirst;
  double rescaleThreshold;
};

/// "q" -> "Q", "do" -> "DO": the suffix of a tensor's C++ names.
std::string suffixOf(StringRef tensor) { return tensor.upper(); }
/// Field of tw::Args that holds a tensor.
StringRef argumentOf(StringRef tensor) {
  return llvm::StringSwitch<StringRef>(tensor)
      .Case("do", "dO")
      .Case("dq", "dQ")
      .Case("dk", "dK")
      .Case("dv", "dV")
      .Default(tensor);
}

/// Schedules one kernel.
class Scheduler {
public:
  Scheduler(tw::KernelOp kernel, const Options &options)
      : kernel(kernel), options(options), b(kernel.getLoc(), kernel), ownsKV(kernel.getRole() == "dkv" || kernel.getRole() == "fused"),
        ownRows(kernel.getOwnRows()), walkRows(kernel.getWalkRows()), group(kernel.getGroup()) {
    kernel.walk([&](tw::ForeachTileOp op) { loop = op; });
    kernel.walk([&](tw::AccumulateOp op) { accumulate = op; });
    kernel.walk([&](tw::LoadOp load) { (load->getParentOp() == kernel ? ownLoads : walkedLoads).push_back(load); });
  }

  LogicalResult run() {
    machine = tw::CudaKernelOp::create(b, kernel.getSymName(), options.warps * 32, options.minBlocks,
                                       b.getStrArrayAttr({}), b.getStrArrayAttr({}));
    b.createBlock(&machine.getBody());
    if (kernel.getRole() == "delta")
      scheduleDelta();
    else if (kernel.getRole() == "convert")
      scheduleConvert();
    else if (accumulate && rowWarpsOfSums() == 0)
      return kernel.emitOpError("warps do not split dQ's tile into whole 16 x 16 blocks");
    else
      scheduleWalk();
    tw::YieldOp::create(b);
    SmallVector<StringRef> lines(declarations.begin(), declarations.end());
    machine.setDeclarationsAttr(b.getStrArrayAttr(lines));
    kernel.erase();
    return success();
  }

private:
  //===--- Declarations -------------------------------------------------------------------------------------------===//

  void declare(const std::string &line) { declarations.push_back(line); }
  void useTemplates(ArrayRef<StringRef> names) { machine.setTemplatesAttr(b.getStrArrayAttr(names)); }

  static const char *elementName(Type stored) {
    return stored.isBF16() ? "tw::BF16" : stored.isF16() ? "tw::F16" : "tw::F32";
  }

  Type storedType() {
    for (tw::LoadOp load : ownLoads)
      if (Type type = load.getTile().getType().getElementType(); isTile(load)) return type;
    return b.getF32Type();
  }

  /// Loads of whole tiles go to shared memory; lse and delta are row values.
  static bool isTile(tw::LoadOp load) { return load.getTensor() != "lse" && load.getTensor() != "delta"; }
  static bool isQSide(StringRef tensor) { return tensor == "q" || tensor == "do" || tensor == "o"; }
  static bool hasDimQK(StringRef tensor) { return tensor == "q" || tensor == "k" || tensor == "dq" || tensor == "dk"; }
  static std::string dimOf(StringRef tensor) { return hasDimQK(tensor) ? "QK" : "V"; }

  int64_t dim(StringRef tensor) {
    for (auto *loads : {&ownLoads, &walkedLoads})
      for (tw::LoadOp load : *loads)
        if (isTile(load) && hasDimQK(load.getTensor()) == hasDimQK(tensor)) return load.getTile().getType().getCols();
    llvm_unreachable("every kernel loads q, k, v or o");
  }

  void declareConstants() {
    int64_t tileQ = ownsKV ? walkRows : ownRows, tileKV = ownsKV ? ownRows : walkRows;
    declare(fmt::format("using Element = {};", elementName(storedType())));
    declare(fmt::format("constexpr int kDimQK = {}, kDimV = {}, kTileQ = {}, kTileKV = {};", dim("q"), dim("v"), tileQ,
                        tileKV));
    declare(
        fmt::format("constexpr int kStages = {}, kWarps = {}, kColumnWarps = {}, kRowWarps = kWarps / kColumnWarps;",
                    options.stages, options.warps, options.columnWarps));
    declare(
        fmt::format("constexpr int kThreads = kWarps * 32, kWarpRows = {} / kRowWarps, kWarpCols = {} / kColumnWarps;",
                    ownsKV ? "kTileKV" : "kTileQ", ownsKV ? "kTileQ" : "kTileKV"));
    declare("constexpr int kPadQK = tw::roundUp<16 * kColumnWarps>(kDimQK), kOwnQK = kPadQK / kColumnWarps;");
    declare("constexpr int kPadV = tw::roundUp<16 * kColumnWarps>(kDimV), kOwnV = kPadV / kColumnWarps;");
    // Owned tiles first, then the rings. The q tile also stages o on its way out.
    std::string offset = "0";
    for (tw::LoadOp load : ownLoads)
      declareTile(load, "1", offset);
    for (tw::LoadOp load : walkedLoads)
      declareTile(load, "kStages", offset);
    if (options.columnWarps > 1) {
      declare("using TileS = tw::SharedTile<Element, kTileKV, kTileQ>;");
      declare(fmt::format("constexpr int kOffsetP = {}, kOffsetDS = kOffsetP + TileS::bytes;", offset));
      offset = "kOffsetDS + TileS::bytes";
    } else if (accumulate) {
      declare("using TileS = tw::SharedTile<Element, kTileKV, kTileQ>;");
      declare(fmt::format("constexpr int kOffsetDS = {};", offset));
      offset = "kOffsetDS + TileS::bytes";
    }
    if (accumulate) {
      declare(fmt::format("constexpr int kRowWarpsDQ = {}, kRowsDQ = kTileQ / kRowWarpsDQ;", rowWarpsOfSums()));
      declare(fmt::format("constexpr int kColsDQ = kPadQK / (kWarps / kRowWarpsDQ), kColsSums = kPadQK{};",
                          accumulate.getCentred() ? " + 8" : ""));
    }
    declare(fmt::format("constexpr int kSharedBytes = {};", offset));
  }

  /// Warps along the rows of dQ's tile: the squarest split into whole 16 x 16 blocks, which reads least from shared
  /// memory for what it computes; 0 where none is.
  int64_t rowWarpsOfSums() {
    int64_t fragment = 16 * options.columnWarps, best = 0, bestDifference = 0;
    int64_t columns = (dim("q") + fragment - 1) / fragment * fragment;
    for (int64_t rowWarps = 1; rowWarps <= options.warps; rowWarps *= 2) {
      int64_t columnWarps = options.warps / rowWarps;
      if (walkRows % (16 * rowWarps) != 0 || columns % (16 * columnWarps) != 0) continue;
      int64_t difference = std::abs(walkRows / rowWarps - columns / columnWarps);
      if (best != 0 && difference >= bestDifference) continue;
      best = rowWarps;
      bestDifference = difference;
    }
    return best;
  }

  void declareTile(tw::LoadOp load, const std::string &slots, std::string &offset) {
    std::string suffix = suffixOf(load.getTensor()), rows = isQSide(load.getTensor()) ? "kTileQ" : "kTileKV";
    if (!isTile(load)) {
      declare(fmt::format("constexpr int kOffset{} = {};", suffix, offset));
      offset = fmt::format("kOffset{} + {} * kTileQ * 4", suffix, slots);
      return;
    }
    bool stagesOutput = kernel.getRole() == "forward" && load.getTensor() == "q";
    declare(fmt::format("using Tile{} = tw::SharedTile<Element, {}, kPad{}{}>;", suffix, rows, dimOf(load.getTensor()),
                        stagesOutput ? ", (kPadV > kPadQK ? kPadV : kPadQK)" : ""));
    declare(fmt::format("constexpr int kOffset{} = {};", suffix, offset));
    offset = fmt::format("kOffset{0} + {1} * Tile{0}::bytes", suffix, slots);
  }

  //===--- Pieces -------------------------------------------------------------------------------------------------===//

  Value seqOf(StringRef tensor) { return b.length(isQSide(tensor) ? "seqQ" : "seqKV"); }
  Value ownLength() { return b.length(ownsKV ? "seqKV" : "seqQ"); }
  Value walkLength() { return b.length(ownsKV ? "seqQ" : "seqKV"); }

  Value decodeBlock() {
    Value heads = b.length(ownsKV ? "headsKV" : "headsQ");
    Value tiles = b.expression(fmt::format("($0 + {0} - 1) / {0}", ownRows), {ownLength()}, b.i32());
    return b.value("tw::decodeBlock", {heads, tiles}, b.object("tw::Block"), options.longestFirst ? "true" : "false");
  }

  /// Sets the names that say which tile this is, after a decodeBlock.
  void nameBlock() {
    head = b.field(block, "head", b.i32());
    batch = b.field(block, "batch", b.i32());
  }

  Value kvHead() { return group == 1 || ownsKV ? head : b.divide(head, b.constant(group)); }

  Value headOf(StringRef tensor, Value ofHead) {
    Value argument = b.argument(argumentOf(tensor), b.object("tw::Tensor"));
    return b.value("tw::headOf", {argument, ofHead, batch}, b.object("Element *"), "Element");
  }
  Value strideOf(StringRef tensor) {
    return b.expression(fmt::format("args.{}.rowStride", argumentOf(tensor).str()), {}, b.getI64Type());
  }
  Value rowsOf(StringRef tensor, Value ofHead) {
    Value argument = b.argument(tensor, b.object("float *"));
    return b.expression("tw::rowsOf($0, args, $1, $2)", {argument, ofHead, batch}, b.object("float *"));
  }

  Value source(tw::LoadOp load, Value ofHead) {
    std::string dims = dimOf(load.getTensor());
    return b.expression("{$0, $1}", {headOf(load.getTensor(), ofHead), strideOf(load.getTensor())},
                        b.object(fmt::format("tw::TileSource<Element, kThreads, kDim{0}, kPad{0}>", dims)));
  }
  Value nameSource(tw::LoadOp load, Value ofHead) {
    return b.name("source" + suffixOf(load.getTensor()), source(load, ofHead));
  }

  Value ringTile(StringRef tensor, Value slot) {
    std::string suffix = suffixOf(tensor);
    return b.expression(fmt::format("Tile{0}(shared + kOffset{0} + $0 * Tile{0}::bytes)", suffix), {slot},
                        b.object("Tile" + suffix));
  }
  /// Shared address of lse or delta of the query rows of a slot; slot 0 where the block owns them.
  Value ringRows(StringRef tensor, Value slot) {
    return b.expression(fmt::format("shared + kOffset{} + $0 * kTileQ * 4", suffixOf(tensor)), {slot},
                        b.object("tw::UInt32"));
  }
  /// The same, from the warp's first query on.
  Value warpRowValues(StringRef tensor) {
    if (!ownsKV)
      return b.expression(fmt::format("shared + kOffset{} + $0 * 4", suffixOf(tensor)), {warpRow},
                          b.object("tw::UInt32"));
    if (options.columnWarps == 1) return ringRows(tensor, currentSlot);
    return b.expression(fmt::format("shared + kOffset{} + ($0 * kTileQ + $1) * 4", suffixOf(tensor)),
                        {currentSlot, warpCol}, b.object("tw::UInt32"));
  }

  /// [&](int q, int k) { return <inside the sequences> && mask; }
  Value visibleLambda(FlatSymbolRefAttr mask, Value qHead) {
    std::string text = ownsKV ? "[&](int q, int k) { return q < args.seqQ && k < args.seqKV"
                              : "[&](int q, int k) { return k < args.seqKV";
    if (mask) text += fmt::format(" && {}(args, q, k, args.seqQ, args.seqKV, $0, $1)", mask.getValue().str());
    return b.expression(text + "; }", {qHead, batch}, b.object("auto"));
  }
  Value scoreLambda(FlatSymbolRefAttr score, Value qHead) {
    return b.expression(
        fmt::format("[&](float s, int q, int k) {{ return {}(args, s, q, k, args.seqQ, args.seqKV, $0, $1); }}",
                    score.getValue().str()),
        {qHead, batch}, b.object("auto"));
  }
  Value dualLambda(FlatSymbolRefAttr score, FlatSymbolRefAttr gradient, Value qHead) {
    auto call = [](FlatSymbolRefAttr fn) {
      return fmt::format("{}(args, s, q, k, args.seqQ, args.seqKV, $0, $1)", fn.getValue().str());
    };
    return b.expression(
        fmt::format("[&](float s, int q, int k) {{ return tw::ScoreDual{{{}, {}}}; }}", call(score), call(gradient)),
        {qHead, batch}, b.object("auto"));
  }

  /// The walk over tiles that the mask leaves, for query head `$0`, as an expression.
  Value walkFor(Value qHead) {
    std::string bounds = loop.getBounds().str(), rows = std::to_string(ownRows), walked = std::to_string(walkRows);
    if (loop.getInterval()) {
      std::string call = fmt::format("{}(args, $0, $0 + {} - 1, args.seqQ, args.seqKV, $1, $2)", bounds, rows);
      // dK and dV of rows past the end must not be touched by what they multiply: such a tile is never full.
      if (ownsKV) call = fmt::format("tw::nothingFullUnless($0 + {} <= args.seqKV, {})", rows, call);
      return b.expression(fmt::format("tw::IntervalWalk(tw::tilesOf<{}>({}))", walked, call), {ownRow, qHead, batch},
                          b.object("auto"));
    }
    std::string own = fmt::format("$0, $0 + {} - 1", rows), walk = fmt::format("i * {0}, i * {0} + {0} - 1", walked);
    std::string call = fmt::format("{}(args, {}, {}, args.seqQ, args.seqKV, $1, $2)", loop.getClasses()->str(),
                                   ownsKV ? walk : own, ownsKV ? own : walk);
    std::string inside = ownsKV ? fmt::format("$0 + {} <= args.seqKV && i * {} + {} <= args.seqQ", rows, walked, walked)
                                : fmt::format("i * {} + {} <= args.seqKV", walked, walked);
    Value length = walkLength();
    return b.expression(fmt::format("tw::ClassifiedWalk(($3 + {0} - 1) / {0}, $1, [&](int i, int head) {{ return "
                                    "tw::insideOnly({1}, {2}); }})",
                                    walked, inside, replaceHead(call)),
                        {ownRow, qHead, batch, length}, b.object("auto"));
  }
  /// The class is asked for the head that the walk passes on.
  static std::string replaceHead(std::string call) {
    size_t at = call.rfind("$1");
    return call.replace(at, 2, "head");
  }

  //===--- Kernels that walk --------------------------------------------------------------------------------------===//

  void scheduleWalk() {
    bool forward = kernel.getRole() == "forward";
    useTemplates(
        forward ? ArrayRef<StringRef>{"common/Block.cuh", "common/Positions.cuh", "sm80/Softmax.cuh", "sm80/Store.cuh"}
                : ArrayRef<StringRef>{"common/Block.cuh", "common/Positions.cuh", "sm80/Centre.cuh",
                                      "sm80/Gradient.cuh", "sm80/Store.cuh"});
    if (accumulate)
      useTemplates({"common/Block.cuh", "common/Positions.cuh", "sm80/Reduce.cuh", "sm80/Gradient.cuh",
                    "sm80/Store.cuh"});
    declareConstants();
    b.name("shared", b.value("tw::sharedBase", {}, b.object("tw::UInt32")));
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
    block = b.name("block", decodeBlock());
    nameBlock();
    ownRow = b.name(ownsKV ? "k0" : "q0", b.multiply(b.field(block, "tile", b.i32()), b.constant(ownRows)));

    // Owned tiles, sources and the walk.
    llvm::SmallVector<Value> ownSources;
    for (tw::LoadOp load : ownLoads)
      if (isTile(load)) {
        ownSources.push_back(nameSource(load, ownsKV || isQSide(load.getTensor()) ? head : kvHead()));
        std::string suffix = suffixOf(load.getTensor());
        ownTiles[load.getTensor()] = b.variable(
            "tile" + suffix, "Tile" + suffix, {b.expression("shared + kOffset" + suffix, {}, b.object("tw::UInt32"))});
      }
    if (!ownsKV)
      for (tw::LoadOp load : walkedLoads)
        walkedSources[load.getTensor()] = nameSource(load, kvHead());
    declareWalk();
    queue = b.variable("queue", "tw::VisitQueue<kStages>");
    unsigned index = 0;
    for (tw::LoadOp load : ownLoads)
      if (isTile(load))
        b.call("tw::copyTileAsync", {ownTiles[load.getTensor()], ownSources[index++], ownRow, seqOf(load.getTensor())});
      else
        b.call("tw::copyRowsAsync",
               {ringRows(load.getTensor(), b.constant(0)), rowsOf(load.getTensor(), head), ownRow, b.length("seqQ")},
               "kThreads, kTileQ");
    if (options.stages == 1) { // a block without visits must not store results under copies still in flight
      b.call("tw::commitCopies", {});
      b.assign(b.expression("queue.visits[0]", {}, b.object("tw::TileVisit")), nextVisit());
    }
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

  void declareWalk() {
    if (!ownsKV || group == 1) {
      walk = b.name("walk", walkFor(head));
      return;
    }
    // One walk after another over the group's query heads.
    Value first = b.name("firstHead", b.multiply(head, b.constant(group)));
    Value lambdaHead = b.expression("qHead", {}, b.i32());
    Value walkOf = b.expression("[&](int qHead) { return $0; }", {walkFor(lambdaHead)}, b.object("auto"));
    Value last = b.add(first, b.constant(group));
    walk = b.name("walk", b.expression("tw::GroupWalk($0, $1, $2)", {first, last, walkOf}, b.object("auto")));
  }

  Value nextVisit() { return b.value(".next", {walk}, b.object("tw::TileVisit")); }

  /// Takes the next visit of the walk and issues its copies into a slot of the rings. A group commits even when there
  /// is nothing to copy, so that waiting by number of groups stays right.
  void copyNextVisit(Value visit, Value slot) {
    b.assign(visit, nextVisit());
    b.ifTrue(b.value(".valid", {visit}, b.getI1Type()), [&] { copyVisit(visit, slot); });
    b.call("tw::commitCopies", {});
  }

  void copyVisit(Value visit, Value slot) {
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

  Value visitHead(Value visit) { return group == 1 ? head : b.field(visit, "head", b.i32()); }

  void lowerLoop() {
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
      for (tw::LoadOp load : walkedLoads)
        if (isTile(load))
          ringTiles[load.getTensor()] = b.name("tile" + suffixOf(load.getTensor()), ringTile(load.getTensor(), slot));
      walkRow = b.multiply(b.field(front, "tile", b.i32()), b.constant(walkRows));
      if (options.columnWarps > 1) walkRow = b.add(walkRow, warpCol);
      walkRow = b.name(ownsKV ? "q0" : "k0", walkRow);
      visit = front;
      currentSlot = slot;
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

  /// Narrow q tiles fit registers, which spares reading them from shared memory for every kv tile.
  bool forwardQueryInRegisters() {
    return kernel.getRole() == "forward" && options.stages > 1 && dim("q") <= 64 && !storedType().isF32() &&
           loop.getInterval(); // classifying tiles needs the registers itself
  }

  /// Values carried by the loop are objects that its body changes in place. Each gets its own, even where two start from
  /// the same fill.
  void bindCarried() {
    auto overHeads = dyn_cast<scf::ForOp>(loop->getParentOp());
    ValueRange starts = overHeads ? ValueRange(overHeads.getInitArgs()) : ValueRange(loop.getInits());
    for (auto [i, start] : llvm::enumerate(starts)) {
      Value object = makeCarried(i, cast<tw::TileType>(start.getType()));
      objects[loop.getBody().front().getArgument(2 + i)] = object;
      objects[loop.getResult(i)] = object;
      if (overHeads) objects[overHeads.getResult(i)] = object;
    }
  }

  Value makeCarried(unsigned index, tw::TileType type) {
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

  Value makeAccumulator(StringRef identifier, const std::string &cols) {
    Value object = b.variable(identifier, fmt::format("tw::Accumulator<kWarpRows, {}>", cols));
    b.call(".clear", {object});
    return object;
  }

  /// Operations before and after the loop.
  void lowerOutside(Operation &op) {
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

  /// dQ is taken relative to the keys' mean: see sm80/Centre.cuh. A score function's slopes would break the zero sums
  /// that this rests on.
  bool centres() { return kernel.getRole() == "dq" && !hasScoreFunction(); }

  void centre(Value dq) {
    drain();
    Value row = b.expression("shared + kOffsetK", {}, b.object("tw::UInt32"));
    b.call("tw::sampleMeanRow", {row, headOf("k", kvHead()), strideOf("k"), b.length("seqKV")}, "kThreads, kDimQK");
    b.call("__syncthreads", {});
    b.call("tw::subtractRowSums", {dq, rowSums, row, b.constant(0)});
  }

  /// Results leave through shared memory, which copies may still fill and warps still read.
  void drain() {
    if (drained) return;
    b.call("tw::waitCopies", {}, "0");
    b.call("__syncthreads", {});
    drained = true;
  }

  bool hasScoreFunction() {
    bool found = false;
    kernel.walk([&](tw::ScoreOp score) { found |= score.getFn().has_value(); });
    return found;
  }

  /// How exponents are taken: from raw products, or from a score function's values.
  void makeScores() {
    if (scores) return;
    if (hasScoreFunction()) {
      scores = b.variable("scores", "tw::NaturalScores");
      return;
    }
    bool forward = kernel.getRole() == "forward";
    scores = b.name("scores", b.value(forward ? "tw::makeRawScores" : "tw::makeSignedScores",
                                      {b.argument("scale", b.getF32Type())}, b.object("tw::RawScores")));
  }

  /// The block's place again, rather than keep it in registers through the loop.
  void redecode() {
    if (ownsKV && !wideFused()) return;
    b.assign(block, decodeBlock());
    b.assign(ownRow, b.multiply(b.field(block, "tile", b.i32()), b.constant(ownRows)));
  }

  void lowerStore(tw::StoreOp store) {
    StringRef tensor = store.getTensor();
    Value row = b.add(ownRow, warpRow);
    if (tensor == "lse") {
      b.call("tw::storeLse", {rowsOf("lse", head), stats, row, b.length("seqQ")});
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

  //===--- The loop's body ----------------------------------------------------------------------------------------===//

  void lowerInside(Operation &op) {
    llvm::TypeSwitch<Operation *>(&op)
        .Case([&](tw::DotOp dot) { lowerDot(dot); })
        .Case([&](tw::ScoreOp score) { lowerScore(score); })
        .Case([&](tw::MaskOp mask) { lowerMask(mask); })
        .Case([&](tw::SoftmaxUpdateOp update) {
          Value threshold =
              arith::ConstantOp::create(b, b.getF32FloatAttr(static_cast<float>(options.rescaleThreshold)));
          b.call("tw::onlineSoftmax",
                 {objects[update.getS()], objects[update.getO()], stats, scores, threshold});
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

  /// Adds the warp's part of dS^T's transpose times K to the sums; dS lies in shared memory since dK's product.
  void lowerAccumulate(tw::AccumulateOp op) {
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

  /// What the assembler can hold through a fused kernel's loop without spilling differs: with narrow rows the block's
  /// place, with wide ones the warp's (CUDA 13.0, sm_90, over masks, scores and groups). The other is asked anew.
  bool wideFused() { return accumulate && std::max(dim("q"), dim("v")) > 64; }

  /// The sums of a tile of `rows` query rows.
  Value sumsOf(Value ofHead, Value tile, int64_t rows) {
    Value tiles = b.expression(fmt::format("($0 + {0} - 1) / {0}", rows), {b.length("seqQ")}, b.i32());
    return b.expression("tw::sumsOf<kTileQ * kColsSums>(args.dqSums, args, $0, $1, $2, $3)",
                        {ofHead, batch, tiles, tile}, b.object("float *"));
  }

  void lowerDot(tw::DotOp dot) {
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

  /// What is left of P or dS for the products: packed registers, or a shared tile where warps share rows.
  struct Product {
    Value sums, left;
    StringRef right;
  };

  void flushProducts() {
    if (options.columnWarps > 1) {
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
    } else {
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
    pendingProducts.clear();
  }

  /// Rounds a warp's part of P or dS into the tile that its column partners read.
  Value shareAmongWarps(const std::string &which, Value part) {
    Value tile = b.name("tile" + which, b.expression("TileS(shared + kOffset" + which + ")", {}, b.object("TileS")));
    b.call("tw::storeShared", {tile, part, warpRow, warpCol});
    return tile;
  }

  Value rowPosition() { return b.add(ownRow, warpRow); }
  /// (first q, first k) of the warp's scores.
  std::pair<Value, Value> positions() {
    return ownsKV ? std::pair(walkRow, rowPosition()) : std::pair(rowPosition(), walkRow);
  }

  void lowerScore(tw::ScoreOp score) {
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

  void lowerMask(tw::MaskOp mask) {
    Value s = objects[mask.getS()];
    objects[mask.getResult()] = s;
    maskFunction = mask.getFnAttr();
    if (kernel.getRole() != "forward") return; // applied to p: see lowerProbability
    auto [q, k] = positions();
    b.ifTrue(b.field(visit, "partial", b.getI1Type()), [&] {
      b.call("tw::applyMask", {s, q, k, visibleLambda(maskFunction, head)});
    });
  }

  /// p = exp(s - LSE), then 0 where hidden: outside the mask the exponential may be infinite, since LSE knows nothing
  /// of those scores.
  void lowerProbability(tw::ProbabilityOp p) {
    Value s = objects[p.getS()];
    b.call(ownsKV ? "tw::probabilitiesTransposed" : "tw::probabilities", {s, warpRowValues("lse"), scores});
    objects[p.getP()] = s;
    if (!slopes) {
      clearInvisible(s);
      return;
    }
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

  void clearInvisible(Value x) {
    auto [q, k] = positions();
    b.ifTrue(b.field(visit, "partial", b.getI1Type()), [&] {
      b.call(ownsKV ? "tw::clearInvisibleTransposed" : "tw::clearInvisible",
             {x, q, k, visibleLambda(maskFunction, ownsKV ? visitHead(visit) : head)});
    });
  }

  //===--- delta
  //----------------------------------------------------------------------------------------------------===//

  /// delta = rowsum(dO * O): lanes share rows, nothing goes through shared memory.
  void scheduleDelta() {
    useTemplates({"common/Args.cuh", "common/Block.cuh", "common/RowDot.cuh"});
    declare(fmt::format("using Element = {};", elementName(storedType())));
    declare(fmt::format("constexpr int kDimV = {}, kThreads = {}, kTileQ = {};",
                        ownLoads[0].getTile().getType().getCols(), options.warps * 32, ownRows));
    declare("constexpr int kLanes = tw::lanesForRow<Element, kDimV>();");
    block = b.name("block", decodeBlock());
    nameBlock();
    Value lane = b.expression("int(threadIdx.x) / kLanes", {}, b.i32());
    Value dO = b.name("gradients", headOf("do", head)), o = b.name("outputs", headOf("o", head));
    Value delta = b.name("delta", rowsOf("delta", head));
    Value row = b.name("row", b.add(b.multiply(b.field(block, "tile", b.i32()), b.constant(ownRows)), lane));
    Value end = b.name("end", b.expression("min((block.tile + 1) * kTileQ, args.seqQ)", {}, b.i32()));
    // Every lane of a warp takes part in the reduction; rows past the end repeat the last one and are not stored.
    Value condition = b.expression("row - int(threadIdx.x % 32) / kLanes < $0", {end}, b.getI1Type());
    b.whileTrue(condition, [&] {
      Value clamped = b.name("clamped", b.expression("tw::Int64(min($0, args.seqQ - 1))", {row}, b.getI64Type()));
      Value sum = b.name(
          "sum", b.value("tw::rowDot",
                         {b.expression("$0 + $1 * args.dO.rowStride", {dO, clamped}, b.object("const Element *")),
                          b.expression("$0 + $1 * args.o.rowStride", {o, clamped}, b.object("const Element *"))},
                         b.getF32Type(), "Element, kDimV"));
      b.ifTrue(b.expression("$0 < $1 && threadIdx.x % kLanes == 0", {row, end}, b.getI1Type()), [&] {
        b.assign(b.expression("$0[$1]", {delta, row}, b.getF32Type()), sum);
      });
      b.assign(row, b.expression("$0 + kThreads / kLanes", {row}, b.i32()));
    });
  }

  //===--- convert --------------------------------------------------------------------------------------------===//

  /// dQ from the sums: a warp for each 16 rows, in the order in which fused left the fragments.
  void scheduleConvert() {
    tw::LoadSumsOp load;
    kernel.walk([&](tw::LoadSumsOp op) { load = op; });
    useTemplates({"common/Block.cuh", "sm80/Reduce.cuh", "sm80/Store.cuh"});
    declare(fmt::format("using Element = {};", elementName(load.getStored())));
    declare(fmt::format("constexpr int kDimQK = {}, kTileQ = {}, kThreads = {};", load.getTile().getType().getCols(),
                        ownRows, options.warps * 32));
    declare(fmt::format("constexpr int kPadQK = tw::roundUp<16 * {}>(kDimQK), kColsSums = kPadQK{};",
                        options.columnWarps, load.getCentred() ? " + 8" : ""));
    declare("using Stage = tw::SharedTile<Element, kTileQ, kPadQK>;");
    declare("constexpr int kSharedBytes = Stage::bytes > kPadQK * 4 ? Stage::bytes : kPadQK * 4;");
    Value shared = b.name("shared", b.value("tw::sharedBase", {}, b.object("tw::UInt32")));
    warpRow = b.name("warpRow", b.expression("tw::warpIndex() * 16", {}, b.i32()));
    block = b.name("block", decodeBlock());
    nameBlock();
    Value tile = b.field(block, "tile", b.i32());
    Value sums = b.name("sums", sumsOf(head, tile, ownRows));
    Value dq = b.variable("dq", "tw::Accumulator<16, kPadQK>");
    b.call("tw::loadTile", {dq, sums, warpRow, b.constant(0)}, "kColsSums");
    if (load.getCentred()) {
      Value ofRows = b.variable("rowSums", "tw::RowSums<16>");
      b.call("tw::loadRowSums", {ofRows, sums, warpRow, b.expression("kPadQK", {}, b.i32())}, "kColsSums");
      b.call("tw::sampleMeanRow", {shared, headOf("k", kvHead()), strideOf("k"), b.length("seqKV")},
             "kThreads, kDimQK");
      b.call("__syncthreads", {});
      b.call("tw::subtractRowSums", {dq, ofRows, shared, b.constant(0)});
      b.call("__syncthreads", {});
    }
    b.call(".scaleBy", {dq, b.argument("scale", b.getF32Type())});
    Value stage = b.variable("stage", "Stage", {shared}), zero = b.constant(0);
    Value row = b.add(b.multiply(tile, b.constant(ownRows)), warpRow);
    b.call("tw::storeTile", {headOf("dq", head), strideOf("dq"), dq, row, b.length("seqQ"), zero, stage, warpRow, zero},
           "kDimQK");
  }

  tw::KernelOp kernel;
  Options options;
  MachineBuilder b;
  bool ownsKV;
  int64_t ownRows, walkRows, group;
  tw::ForeachTileOp loop;
  tw::AccumulateOp accumulate; ///< Of a fused kernel.
  SmallVector<tw::LoadOp> ownLoads, walkedLoads;
  tw::CudaKernelOp machine;
  std::vector<std::string> declarations;

  Value warpIndex, warpRow, rowWarp, columnWarp, warpCol, block, head, batch, ownRow, walk, queue;
  llvm::StringMap<Value> ownTiles, ringTiles, walkedSources;
  llvm::DenseMap<Value, Value> objects; ///< Tile-level value -> the machine object that holds it.
  Value stats, scores, slopes, rowSums, queryOperand, probabilityTile, probabilityOperand, gradientTile;
  SmallVector<Product, 2> pendingProducts;
  Value walkRow, visit, currentSlot;
  FlatSymbolRefAttr maskFunction;
  bool drained = false;
};

struct ScheduleSm80Pass : impl::ScheduleSm80Base<ScheduleSm80Pass> {
  using ScheduleSm80Base::ScheduleSm80Base;

  void runOnOperation() override {
    Options options{stages, warps, columnWarps, minBlocks, longestFirst, rescaleThreshold};
    SmallVector<tw::KernelOp> kernels(getOperation().getOps<tw::KernelOp>());
    for (tw::KernelOp kernel : kernels)
      if (failed(Scheduler(kernel, options).run())) return signalPassFailure();
  }
};

} // namespace
} // namespace tilewright
