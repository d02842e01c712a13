// Schedules a forward kernel for Hopper (Passes.td describes the schedule). Its definitions lie by subject:
// Sm90Declarations.cpp (shared memory and products), Sm90Producer.cpp (who loads and deals), Sm90Consumer.cpp (who
// computes).
#pragma once

#include "KernelPieces.h"

namespace tilewright {

/// What only this family's schedule says beside ScheduleOptions.
struct Sm90Options {
  bool overlapsWithin = false;  ///< A warp group's softmax runs under its own product with V.
  bool overlapsBetween = false; ///< Warp groups take turns at the tensor cores (ping-pong).
  int64_t queryStages = 1;      ///< Slots of the ring of Q tiles.
  int64_t stagedChunks = 1;     ///< Chunks of 64 columns of O that a warp stages at once on its way out.
};

class Sm90Scheduler : KernelPieces {
public:
  Sm90Scheduler(tw::KernelOp kernel, const ScheduleOptions &options, const Sm90Options &hopper)
      : KernelPieces(kernel, options), hopper(hopper), groups(options.warps / 4) {}

  /// Replaces the tile-level kernel by a tw.cuda_kernel.
  mlir::LogicalResult run();

private:
  using Value = mlir::Value;

  //===--- Constants, shared memory, products ---------------------------------------------------------------------===//

  void declareConstants();
  void declareProducts();
  /// Declares the rings and the slot of tiles, and has one thread initialise their barriers.
  void setUpBarriers();

  //===--- Tiles --------------------------------------------------------------------------------------------------===//

  Value blockIsValid() { return b.expression("block.tile >= 0", {}, b.getI1Type()); }
  Value visitIsValid() { return b.value(".valid", {visit}, b.getI1Type()); }
  /// Declares block, q0, walk and visit, for the first tile; `walksGroup`: the visits of this group's rows.
  void takeFirstTile(bool walksGroup);
  /// The mask may leave out some of a tile's visits for some of its groups.
  bool groupsDiffer();
  mlir::Value walkOfGroup();
  /// Visits of the tile that this group takes no part in.
  void passVisits(const char *which);
  /// On to the next tile; at the end block.tile is negative and the walk untouched.
  void takeTile();

  //===--- Producer -----------------------------------------------------------------------------------------------===//

  /// Of a thread, once the groups have parted.
  struct Registers {
    int consumer, producer;
  };
  Registers registers();
  void produce();
  void loadInto(Value ring, llvm::StringRef tensor, Value row, Value ofHead);

  //===--- Consumers ----------------------------------------------------------------------------------------------===//

  void consume();
  void skipUnseenTiles();
  void startTile();
  /// One kv tile: S of this visit and P V of the one before, if there is one, are issued together. The first of a tile
  /// counts as masked, since its rows have no maxima yet.
  void step(bool masked);
  void issueProducts(bool masked);
  /// What there is to do in every visit but the first.
  void afterFirst(bool masked, llvm::function_ref<void()> body);
  void scoreVisit(bool masked);
  void maskVisit();
  /// Maxima first, then exponentials: right for every tile.
  void exactSoftmax();
  /// Exponentials relative to the maxima so far, and the exact way only if they outgrew those.
  void lazySoftmax();
  mlir::Value sumBound();
  void finishTile();
  void storeResults();
  void storeUnseen();
  Value keyDescriptor();
  Value valueDescriptor();
  bool isPacked() const { return options.packedHeads > 1; }
  bool isSplit() { return kernel.getParts() > 1; }
  bool storesByCopyEngine() { return !isPacked() && !isSplit(); }
  /// Of a warp's first row: where it lies in its sequence; of packed heads, in the tile.
  Value rowPosition() { return isPacked() ? warpRow : b.add(ownRow, warpRow); }
  /// Whose the tile's rows are, of packed heads or split keys.
  Value rowOwner();
  /// Where a part's results go.
  Value stateOfPart();
  Value visitRow() { return b.multiply(b.field(visit, "tile", b.i32()), b.constant(walkRows)); }
  Value threshold(double log2);

  /// Without a threshold every tile's maximum counts.
  bool isLazy() const { return options.rescaleThreshold > 0; }

  Sm90Options hopper;
  int64_t groups; ///< Consumer warp groups.
  Value group, ringQ, ringK, ringV, tiles, walkOf, visit, first;
  Value warpRow, scores, rows, o, s, p, sums, moved, bound, queryDescriptor;
};

} // namespace tilewright
