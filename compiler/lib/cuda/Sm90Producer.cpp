#include "Sm90Scheduler.h"

using namespace mlir;

namespace tilewright {

bool Sm90Scheduler::groupsDiffer() {
  bool hasMask = false;
  loop.walk([&](tw::MaskOp mask) { hasMask = mask.getFnAttr() != nullptr; });
  return groups > 1 && hasMask && loop.getInterval() && !isPacked() && !isSplit();
}

Value Sm90Scheduler::walkOfGroup() {
  auto span = [&](const char *first, int64_t rows) {
    return fmt::format("tw::tilesOf<{}>({}(args, {}, {} + {}, args.seqQ, args.seqKV, $1, $2))", walkRows,
                       loop.getBounds().str(), first, first, rows - 1);
  };
  return b.expression(fmt::format("tw::GroupVisits({}, {})", span("$0", ownRows), span("$0 + group * 64", 64)),
                      {ownRow, head, batch}, b.object("auto"));
}

void Sm90Scheduler::takeFirstTile(bool walksGroup) {
  block = b.name("block", b.value(".take", {tiles}, b.object("tw::Block")));
  head = b.field(block, "head", b.i32());
  batch = b.field(block, "batch", b.i32());
  ownRow = b.name("q0", b.multiply(b.field(block, "tile", b.i32()), b.constant(ownSpan)));
  // One lambda, since each spelling of a classified walk's own would be a type of its own.
  walkOf = b.name("walkOf",
                  b.expression("[&] { return $0; }", {walksGroup ? walkOfGroup() : walkFor(head)}, b.object("auto")));
  walk = b.name("walk", b.expression("walkOf()", {}, b.object("auto")));
  visit = b.name("visit", nextVisit());
}

void Sm90Scheduler::takeTile() {
  b.assign(block, b.value(".take", {tiles}, b.object("tw::Block")));
  b.ifTrue(blockIsValid(), [&] {
    b.assign(ownRow, b.multiply(b.field(block, "tile", b.i32()), b.constant(ownSpan)));
    b.assign(walk, b.expression("walkOf()", {}, b.object("auto")));
    b.assign(visit, nextVisit());
  });
}

void Sm90Scheduler::loadInto(Value ring, StringRef tensor, Value row, Value ofHead) {
  std::string suffix = suffixOf(tensor);
  const bool packs = isPacked() && tensor == "q";
  b.call(".waitEmpty", {ring});
  b.ifTrue(b.expression("asks", {}, b.getI1Type()), [&] {
    Value full = b.value(".full", {ring}, b.object("tw::UInt32"));
    Value to = b.expression(fmt::format("shared + kOffset{0} + $0 * Tile{0}::bytes", suffix),
                            {b.field(ring, "slot", b.i32())}, b.object("tw::UInt32"));
    b.call("tw::arriveExpecting",
           {full, b.expression(packs ? "tw::PackedTile<TileQ, kHeads>::bytes" : fmt::format("Tile{}::bytes", suffix),
                               {}, b.i32())});
    b.call(packs ? "tw::loadPackedTile" : "tw::loadTile",
           {to, b.expression("launch." + tensor.str(), {}, b.object("tw::TensorMap")), full, row, ofHead, batch},
           "Tile" + suffix);
  });
  b.call(".advance", {ring});
}

/// The pool of registers is what the launch gave, and both numbers (multiples of 8) use it up. A walk that classifies
/// tiles as it goes computes more than one of ranges known beforehand.
Sm90Scheduler::Registers Sm90Scheduler::registers() {
  bool classifies = !loop.getInterval();
  switch (groups) {
  case 1:
    return {256, 56};
  case 2:
    return classifies ? Registers{208, 88} : Registers{240, 24};
  case 3:
    return {160, 32};
  default:
    return {112, 24};
  }
}

/// Two warps of the producer group are busy: one deals out tiles, one loads them. All its lanes walk, since walks ask
/// lanes together; one asks the copy engine.
void Sm90Scheduler::produce() {
  b.call("tw::lowerRegisters", {}, std::to_string(registers().producer));
  Value warp = b.name("warp", b.expression("tw::warpIndex() - kGroups * 4", {}, b.i32()));
  Value asks = b.name("asks", b.expression("threadIdx.x % 32 == 0", {}, b.getI1Type()));
  b.ifTrue(b.expression("$0 == 1 && $1", {warp, asks}, b.getI1Type()), [&] {
    b.call("tw::dealTiles", {b.expression("launch.grid", {}, b.object("tw::TileGrid")), tiles},
           options.longestFirst ? "true, kParts" : "false, kParts");
  });
  b.ifTrue(b.expression("$0 == 0", {warp}, b.getI1Type()), [&] {
    b.ifTrue(asks, [&] {
      for (const char *tensor : {"q", "k", "v", "o"})
        if (*tensor != 'o' || storesByCopyEngine())
          b.call("tw::prefetchMap", {b.expression(fmt::format("launch.{}", tensor), {}, b.object("tw::TensorMap"))});
    });
    takeFirstTile(/*walksGroup=*/false);
    b.whileTrue(blockIsValid(), [&] {
      b.ifTrue(visitIsValid(), [&] {
        loadInto(ringQ, "q", ownRow, head);
        loadInto(ringK, "k", visitRow(), kvHead());
      });
      // S runs one visit ahead of P V, and so do the loads of K.
      b.whileTrue(visitIsValid(), [&] {
        Value current = b.name("current", visitRow());
        b.assign(visit, nextVisit());
        b.ifTrue(visitIsValid(), [&] { loadInto(ringK, "k", visitRow(), kvHead()); });
        loadInto(ringV, "v", current, kvHead());
      });
      takeTile();
    });
  });
}

} // namespace tilewright
