#include "Sm90Scheduler.h"
#include "WgmmaText.h"

using namespace mlir;

namespace tilewright {
namespace {

int64_t roundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// Distances of a K-major tile's k steps: 32 bytes inside a line of 128, then the next chunk of columns.
std::vector<int64_t> stepsAlongLines(int64_t dim, int64_t tileRows) {
  std::vector<int64_t> distances;
  for (int64_t step = 0; step < roundUp(dim, 16) / 16; ++step)
    distances.push_back(step / 4 * (tileRows * 8) + step % 4 * 2);
  return distances;
}

/// Distances of an MN-major tile's k steps: 16 lines of 128 bytes.
std::vector<int64_t> stepsAcrossLines(int64_t tileRows) {
  std::vector<int64_t> distances;
  for (int64_t step = 0; step < tileRows / 16; ++step)
    distances.push_back(step * 128);
  return distances;
}

} // namespace

void Sm90Scheduler::declareConstants() {
  SmallVector<StringRef> templates = {"common/Args.cuh",     "common/Positions.cuh", "common/TileWalk.cuh",
                                      "sm90/Descriptor.cuh", "sm90/Epilogue.cuh",    "sm90/GroupVisits.cuh",
                                      "sm90/Recompute.cuh",  "sm90/TileStream.cuh"};
  if (isPacked()) templates.push_back("sm90/PackedRows.cuh");
  if (isSplit()) templates.append({"common/RowOwner.cuh", "sm90/StoreState.cuh"});
  useTemplates(templates);
  declare(fmt::format("using Element = {};", elementName(storedType())));
  declare(fmt::format("constexpr int kDimQK = {}, kDimV = {}, kTileQ = {}, kTileKV = {};", dim("q"), dim("v"), ownRows,
                      walkRows));
  declare(fmt::format("constexpr int kGroups = {}, kStages = {}, kQueryStages = {}, kStagedChunks = {};", groups,
                      options.stages, hopper.queryStages, hopper.stagedChunks));
  declare(fmt::format("constexpr int kHeads = {}, kParts = {};", options.packedHeads, kernel.getParts()));
  declare("using TileQ = tw::SwizzledTile<kTileQ, kDimQK>;");
  declare("using TileK = tw::SwizzledTile<kTileKV, kDimQK>;");
  declare("using TileV = tw::SwizzledTile<kTileKV, kDimV>;");
  declare("constexpr int kOffsetQ = 0, kOffsetK = kOffsetQ + kQueryStages * TileQ::bytes;");
  declare("constexpr int kOffsetV = kOffsetK + kStages * TileK::bytes, kOffsetO = kOffsetV + kStages * TileV::bytes;");
  declare("constexpr int kOffsetTiles = kOffsetO + kGroups * 4 * kStagedChunks * tw::kStagedChunkBytes;");
  declare("constexpr int kOffsetRingQ = kOffsetTiles + tw::TileSlot<kParts>::bytes;");
  declare("constexpr int kOffsetRingK = kOffsetRingQ + tw::Ring<kQueryStages>::bytes;");
  declare("constexpr int kOffsetRingV = kOffsetRingK + tw::Ring<kStages>::bytes;");
}

void Sm90Scheduler::declareProducts() {
  const int64_t outputColumns = roundUp(dim("v"), 16);
  WgmmaProduct scoresProduct{
      "multiplyQK", storedType(), walkRows, stepsAlongLines(dim("q"), ownRows), stepsAlongLines(dim("q"), walkRows),
      false};
  WgmmaProduct outputProduct{"multiplyPV", storedType(), outputColumns, {}, stepsAcrossLines(walkRows), true};
  declare(scoresProduct.text());
  declare(outputProduct.text());
  declare(wgmmaWaitText("waitOutput", 0, {outputColumns}, walkRows));
  if (hopper.overlapsWithin)
    declare(wgmmaWaitText("waitScoresFirst", 1, {walkRows}));
  else
    declare(wgmmaWaitText("waitBoth", 0, {walkRows, outputColumns}, walkRows));
}

void Sm90Scheduler::setUpBarriers() {
  auto at = [&](const char *offset) {
    return b.expression(fmt::format("shared + {}", offset), {}, b.object("tw::UInt32"));
  };
  ringQ = b.variable("ringQ", "tw::Ring<kQueryStages>", {at("kOffsetRingQ")});
  ringK = b.variable("ringK", "tw::Ring<kStages>", {at("kOffsetRingK")});
  ringV = b.variable("ringV", "tw::Ring<kStages>", {at("kOffsetRingV")});
  tiles = b.variable("tiles", "tw::TileSlot<kParts>", {at("kOffsetTiles")});
  b.ifTrue(b.expression("threadIdx.x == 0", {}, b.getI1Type()), [&] {
    Value warps = b.expression("kGroups * 4", {}, b.i32());
    for (Value ring : {ringQ, ringK, ringV})
      b.call(".init", {ring, warps});
    b.call(".init", {tiles, b.expression("kGroups * 4 + 1", {}, b.i32())}); // the loading warp takes tiles too
    b.call("tw::fenceBarrierInit", {});
  });
  if (isPacked() && ownRows % options.packedHeads != 0)
    b.call("tw::clearUnownedLines", {at("kOffsetQ")}, "TileQ, kHeads, kQueryStages, (kGroups + 1) * 128");
  b.call("__syncthreads", {});
}

} // namespace tilewright
