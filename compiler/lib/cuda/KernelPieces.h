// What the schedule of a kernel says the same way in every GPU family: the names of tensors, the block's place, the
// operands' addresses, the functions of mask and score, the walk over tiles. A family's scheduler derives from it.
#pragma once

#include "MachineBuilder.h"

namespace tilewright {

/// A schedule pass' options (Passes.td says what each means).
struct ScheduleOptions {
  int64_t stages, warps, columnWarps, minBlocks;
  bool longestFirst;
  double rescaleThreshold;
  int64_t rowWarpsOfDQ; ///< Fused: Schedule::rowWarpsOfDQ
  int64_t packedHeads = 1; ///< Query heads of one kv head that share a q tile.
};

class KernelPieces {
public:
  KernelPieces(tw::KernelOp kernel, const ScheduleOptions &options);

protected:
  //===--- The machine-level kernel -------------------------------------------------------------------------------===//

  /// Creates the tw.cuda_kernel and puts the builder inside.
  void begin();
  /// Closes it; the tile-level kernel is gone afterwards.
  void finish();
  /// A line printed before the kernel.
  void declare(const std::string &line) { declarations.push_back(line); }
  void useTemplates(llvm::ArrayRef<llvm::StringRef> names) { machine.setTemplatesAttr(b.getStrArrayAttr(names)); }

  //===--- What the tile level says -------------------------------------------------------------------------------===//

  /// Loads of whole tiles go to shared memory; lse and delta are row values.
  static bool isTile(tw::LoadOp load) { return load.getTensor() != "lse" && load.getTensor() != "delta"; }
  static bool isQSide(llvm::StringRef tensor) { return tensor == "q" || tensor == "do" || tensor == "o"; }
  static bool hasDimQK(llvm::StringRef tensor) {
    return tensor == "q" || tensor == "k" || tensor == "dq" || tensor == "dk";
  }
  /// "QK" or "V": the end of the name of a tensor's head dim.
  static std::string dimOf(llvm::StringRef tensor) { return hasDimQK(tensor) ? "QK" : "V"; }
  /// "q" -> "Q", "do" -> "DO": the suffix of a tensor's C++ names.
  static std::string suffixOf(llvm::StringRef tensor) { return tensor.upper(); }
  /// Field of tw::Args that holds a tensor.
  static llvm::StringRef argumentOf(llvm::StringRef tensor);
  /// The C++ type of a stored element.
  static const char *elementName(mlir::Type stored);

  mlir::Type storedType();
  /// Head dim of a tensor that the kernel loads.
  int64_t dim(llvm::StringRef tensor);
  bool hasScoreFunction();

  //===--- Places and addresses -----------------------------------------------------------------------------------===//

  mlir::Value seqOf(llvm::StringRef tensor) { return b.length(isQSide(tensor) ? "seqQ" : "seqKV"); }
  mlir::Value ownLength() { return b.length(ownsKV ? "seqKV" : "seqQ"); }
  mlir::Value walkLength() { return b.length(ownsKV ? "seqQ" : "seqKV"); }

  mlir::Value decodeBlock();
  /// Declares `block` and sets the names that say which tile this is.
  void nameBlock();
  /// `head` is a query head, but a kv head where the block owns kv rows or all heads of a group.
  mlir::Value kvHead() {
    return group == 1 || ownsKV || options.packedHeads > 1 ? head : b.divide(head, b.constant(group));
  }
  /// The query head of a visit: the walk's where it runs over a group.
  mlir::Value visitHead(mlir::Value visit) { return group == 1 ? head : b.field(visit, "head", b.i32()); }

  /// First element of one head of a tensor.
  mlir::Value headOf(llvm::StringRef tensor, mlir::Value ofHead);
  mlir::Value strideOf(llvm::StringRef tensor);
  /// Row statistics of one query head.
  mlir::Value rowsOf(llvm::StringRef tensor, mlir::Value ofHead);
  /// dQ's sums of a tile of `rows` query rows.
  mlir::Value sumsOf(mlir::Value ofHead, mlir::Value tile, int64_t rows);

  //===--- Mask, score and walk -----------------------------------------------------------------------------------===//

  /// [&](int q, int k) { return <inside the sequences> && mask; }; of packed heads `q` is a row of the tile.
  mlir::Value visibleLambda(mlir::FlatSymbolRefAttr mask, mlir::Value qHead);
  /// [&](float s, int q, int k) { return score; }
  mlir::Value scoreLambda(mlir::FlatSymbolRefAttr score, mlir::Value qHead);
  /// The same with the slope: tw::ScoreDual.
  mlir::Value dualLambda(mlir::FlatSymbolRefAttr score, mlir::FlatSymbolRefAttr gradient, mlir::Value qHead);
  /// Writes the mean of sampled keys to shared address `to`: of keys that the last of the owned rows, from `row` on,
  /// sees.
  void sampleMeanKey(mlir::Value to, mlir::Value row, mlir::FlatSymbolRefAttr bounds, mlir::FlatSymbolRefAttr mask);
  /// Declares `walk`, over the tiles that the mask leaves of the owned rows: one after another for each query head of
  /// a group where the kernel owns kv rows.
  void declareWalk();
  mlir::Value nextVisit() { return b.value(".next", {walk}, b.object("tw::TileVisit")); }

  /// The walk over tiles that the mask leaves for one query head, as an expression.
  mlir::Value walkFor(mlir::Value qHead);

  tw::KernelOp kernel;
  ScheduleOptions options;
  MachineBuilder b;
  bool ownsKV; ///< The block owns k and v rows and walks over q; else the other way round.
  int64_t ownRows, walkRows, group;
  int64_t ownSpan; ///< Positions that the owned rows lie at: fewer where heads share a tile.
  tw::ForeachTileOp loop;                              ///< Null in kernels that do not walk.
  tw::AccumulateOp accumulate;                         ///< Of a fused kernel.
  llvm::SmallVector<tw::LoadOp> ownLoads, walkedLoads; ///< Of what every visit needs.
  tw::CudaKernelOp machine;
  mlir::Value block, head, batch, ownRow, walk;

private:
  /// A lambda over pairs of positions that returns `value`, in which "{head}" stands for the query head.
  mlir::Value pairLambda(const std::string &parameters, std::string value, mlir::Value qHead);

  std::vector<std::string> declarations;
};

} // namespace tilewright
