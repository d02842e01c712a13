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
  /// Declares block, q0, walk and visit, for the first tile.
  void takeFirstTile();
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
  /// One kv tile: S of this visit and P V of the one before are issued together.
  void step(bool masked);
  void issueProducts();
  void scoreVisit(bool masked);
  void maskVisit();
  /// Maxima first, then exponentials: right for every tile.
  void exactSoftmax();
  /// Exponentials relative to the maxima so far, and the exact way only if they outgrew those.
  void lazySoftmax();
  mlir::Value sumBound();
  void finishTile();
  Value keyDescriptor();
  Value valueDescriptor();
  Value rowPosition() { return b.add(ownRow, warpRow); }
  Value visitRow() { return b.multiply(b.field(visit, "tile", b.i32()), b.constant(walkRows)); }
  Value threshold(double log2);

  /// Without a threshold every tile's maximum counts.
  bool isLazy() const { return options.rescaleThreshold > 0; }

  Sm90Options hopper;
  int64_t groups; ///< Consumer warp groups.
  Value group, ringQ, ringK, ringV, tiles, walkOf, visit;
  Value warpRow, scores, rows, o, s, p, sums, moved, bound, queryDescriptor;
};

} // namespace tilewright
