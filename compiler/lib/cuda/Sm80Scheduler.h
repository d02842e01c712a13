// Schedules one kernel that walks over tiles for GPUs with cp.async and mma.sync (Passes.td describes the schedule).
// Its definitions lie by subject: Sm80Declarations.cpp (shared memory), Sm80Walk.cpp (set-up and the loop's frame),
// Sm80Body.cpp (one visit), Sm80Results.cpp (what follows the loop).
#pragma once

#include "KernelPieces.h"

namespace tilewright {

class Sm80Scheduler : KernelPieces {
public:
  using KernelPieces::KernelPieces;

  /// Replaces the tile-level kernel by a tw.cuda_kernel.
  mlir::LogicalResult run();

private:
  using Value = mlir::Value;

  //===--- Constants and shared memory ----------------------------------------------------------------------------===//

  void declareConstants();
  /// Whether options.rowWarpsOfDQ gives every warp whole 16 x 16 blocks of dQ's tile.
  bool splitsDQ();
  void declareTile(tw::LoadOp load, const std::string &slots, std::string &offset);
  Value source(tw::LoadOp load, Value ofHead);
  Value nameSource(tw::LoadOp load, Value ofHead) {
    return b.name("source" + suffixOf(load.getTensor()), source(load, ofHead));
  }
  Value ringTile(llvm::StringRef tensor, Value slot);
  /// Shared address of lse or delta of the query rows of a slot; slot 0 where the block owns them.
  Value ringRows(llvm::StringRef tensor, Value slot);
  /// The same, from the warp's first query on.
  Value warpRowValues(llvm::StringRef tensor);

  //===--- The walk -----------------------------------------------------------------------------------------------===//

  void scheduleWalk();
  void namePlace();
  void copyOwned(llvm::ArrayRef<Value> sources);
  /// Takes the next visit of the walk and issues its copies into a slot of the rings. A group commits even when there
  /// is nothing to copy, so that waiting by number of groups stays right.
  void copyNextVisit(Value visit, Value slot);
  void copyVisit(Value visit, Value slot);
  void lowerLoop();
  /// Values carried by the loop are objects that its body changes in place. Each gets its own, even where two start
  /// from the same fill.
  void bindCarried();
  Value makeCarried(unsigned index, tw::TileType type);
  Value makeAccumulator(llvm::StringRef identifier, const std::string &cols);
  /// How exponents are taken: from raw products, or from a score function's values.
  void makeScores();

  //===--- One visit ----------------------------------------------------------------------------------------------===//

  /// What is left of P or dS for the products: packed registers, or a shared tile where warps share rows.
  struct Product {
    Value sums, left;
    llvm::StringRef right;
  };

  void lowerInside(mlir::Operation &op);
  void lowerDot(tw::DotOp dot);
  void flushProducts();
  void multiplyShared();
  void multiplyRegisters();
  /// Rounds a warp's part of P or dS into the tile that its column partners read.
  Value shareAmongWarps(const std::string &which, Value part);
  void lowerScore(tw::ScoreOp score);
  void lowerMask(tw::MaskOp mask);
  /// p = exp(s - LSE), 0 where hidden.
  void lowerProbability(tw::ProbabilityOp p);
  /// Whether the warp has LSE so large that their rounding shows: one vote a visit.
  Value findCoarse();
  /// What raw products need before their exponentials, and the object that takes those. All that is rare, hidden pairs
  /// and coarse LSE, lies behind one branch, so that the exponentials of most tiles stand in one block with the product
  /// after them and run beside it.
  Value prepareExponents(Value s);
  /// The same for a score function: p is corrected after its exponentials, then the slopes and the mask follow.
  void correctProbability(Value p);
  /// Where the head's rest of LSE lies, or null, and the warp's first query.
  std::pair<Value, Value> restOfLse();
  void clearInvisible(Value x);
  void replaceInvisible(Value x, Value by);
  /// Adds the warp's part of dS^T's transpose times K to the sums; dS lies in shared memory since dK's product.
  void lowerAccumulate(tw::AccumulateOp op);
  Value rowPosition() { return b.add(ownRow, warpRow); }
  /// (first q, first k) of the warp's scores.
  std::pair<Value, Value> positions();

  //===--- After the loop -----------------------------------------------------------------------------------------===//

  void lowerOutside(mlir::Operation &op);
  void centre(Value dq);
  /// Results leave through shared memory, which copies may still fill and warps still read.
  void drain();
  /// The block's place again, rather than keep it in registers through the loop.
  void takePlaceAnew();
  /// The same where the results need it.
  void redecode();
  void lowerStore(tw::StoreOp store);

  //===--- What kind of kernel this is ----------------------------------------------------------------------------===//

  /// Narrow q tiles fit registers, which spares reading them from shared memory for every kv tile.
  bool forwardQueryInRegisters() {
    return kernel.getRole() == "forward" && options.stages > 1 && dim("q") <= 64 && !storedType().isF32() &&
           loop.getInterval(); // classifying tiles needs the registers itself
  }
  /// The wide sums of fused kernels leave no registers to hold the block's place through the loop: it is read anew for
  /// every tile, which costs little beside the products of such tiles.
  bool takesPlaceInLoop() { return accumulate && std::max(dim("q"), dim("v")) > 128; }
  /// dK and dV of 32 rows a warp fill the registers likewise, but only partial tiles need the place.
  bool takesPlaceInPartialTiles() { return kernel.getRole() == "dkv" && options.columnWarps == 1; }
  /// dQ is taken relative to the keys' mean: see sm80/Centre.cuh. A score function's slopes would break the zero sums
  /// that this rests on.
  bool centres() { return kernel.getRole() == "dq" && !hasScoreFunction(); }
  /// What the assembler can hold through a fused kernel's loop without spilling differs: with narrow rows the block's
  /// place, with wide ones the warp's (CUDA 13.0, sm_90, over masks, scores and groups). The other is asked anew.
  bool wideFused() { return accumulate && std::max(dim("q"), dim("v")) > 64; }

  Value warpIndex, warpRow, rowWarp, columnWarp, warpCol, queue;
  llvm::StringMap<Value> ownTiles, ringTiles, walkedSources;
  llvm::DenseMap<Value, Value> objects; ///< Tile-level value -> the machine object that holds it.
  Value stats, scores, slopes, rowSums, queryOperand, probabilityTile, probabilityOperand, gradientTile;
  llvm::SmallVector<Product, 2> pendingProducts;
  Value walkRow, visit, currentSlot, coarse;
  mlir::FlatSymbolRefAttr maskFunction;
  bool drained = false;
};

} // namespace tilewright
