#include "Sm80Scheduler.h"

using namespace mlir;

namespace tilewright {

void Sm80Scheduler::declareConstants() {
  int64_t tileQ = ownsKV ? walkRows : ownRows, tileKV = ownsKV ? ownRows : walkRows;
  declare(fmt::format("using Element = {};", elementName(storedType())));
  declare(fmt::format("constexpr int kDimQK = {}, kDimV = {}, kTileQ = {}, kTileKV = {};", dim("q"), dim("v"), tileQ,
                      tileKV));
  declare(fmt::format("constexpr int kStages = {}, kWarps = {}, kColumnWarps = {}, kRowWarps = kWarps / kColumnWarps;",
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
    declare(fmt::format("constexpr int kRowWarpsDQ = {}, kRowsDQ = kTileQ / kRowWarpsDQ;", options.rowWarpsOfDQ));
    declare(fmt::format("constexpr int kColsDQ = kPadQK / (kWarps / kRowWarpsDQ), kColsSums = kPadQK{};",
                        accumulate.getCentred() ? " + 8" : ""));
  }
  declare(fmt::format("constexpr int kSharedBytes = {};", offset));
}

bool Sm80Scheduler::splitsDQ() {
  int64_t rowWarps = options.rowWarpsOfDQ, fragment = 16 * options.columnWarps;
  if (rowWarps < 1 || options.warps % rowWarps != 0) return false;
  int64_t columns = (dim("q") + fragment - 1) / fragment * fragment;
  return walkRows % (16 * rowWarps) == 0 && columns % (16 * (options.warps / rowWarps)) == 0;
}

void Sm80Scheduler::declareTile(tw::LoadOp load, const std::string &slots, std::string &offset) {
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

Value Sm80Scheduler::source(tw::LoadOp load, Value ofHead) {
  std::string dims = dimOf(load.getTensor());
  return b.expression("{$0, $1}", {headOf(load.getTensor(), ofHead), strideOf(load.getTensor())},
                      b.object(fmt::format("tw::TileSource<Element, kThreads, kDim{0}, kPad{0}>", dims)));
}

Value Sm80Scheduler::ringTile(StringRef tensor, Value slot) {
  std::string suffix = suffixOf(tensor);
  return b.expression(fmt::format("Tile{0}(shared + kOffset{0} + $0 * Tile{0}::bytes)", suffix), {slot},
                      b.object("Tile" + suffix));
}
Value Sm80Scheduler::ringRows(StringRef tensor, Value slot) {
  return b.expression(fmt::format("shared + kOffset{} + $0 * kTileQ * 4", suffixOf(tensor)), {slot},
                      b.object("tw::UInt32"));
}
Value Sm80Scheduler::warpRowValues(StringRef tensor) {
  if (!ownsKV)
    return b.expression(fmt::format("shared + kOffset{} + $0 * 4", suffixOf(tensor)), {warpRow},
                        b.object("tw::UInt32"));
  if (options.columnWarps == 1) return ringRows(tensor, currentSlot);
  return b.expression(fmt::format("shared + kOffset{} + ($0 * kTileQ + $1) * 4", suffixOf(tensor)),
                      {currentSlot, warpCol}, b.object("tw::UInt32"));
}

} // namespace tilewright
