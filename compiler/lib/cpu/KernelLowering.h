// One tw.kernel -> one function over a range of blocks.
#pragma once

#include "InlineFunction.h"
#include "TileCopy.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "tilewright/dialect/Tw.h"

namespace tilewright::cpu {

class KernelLowering {
public:
  KernelLowering(tw::KernelOp kernel, int64_t vectorBits);

  /// Adds func.func @KERNEL(%args: !llvm.ptr, %begin: i64, %end: i64, %scratch: !llvm.ptr) beside the kernel, with the
  /// scratch bytes a thread needs as attribute `tw.scratch_bytes`, and erases the kernel.
  mlir::LogicalResult lower();

private:
  /// A tile's places: each of the two layouts that its uses ask for.
  struct Tile {
    TileBuffer panels, rows;
  };

  // KernelLowering.cpp: the grid and the operations in order.
  void lowerGrid(mlir::Block &body, Value begin, Value end);
  mlir::LogicalResult lowerBlock(mlir::Block &block);
  mlir::LogicalResult lowerOperation(mlir::Operation &op);
  mlir::LogicalResult lowerLoad(tw::LoadOp op);
  mlir::LogicalResult lowerStore(tw::StoreOp op);
  mlir::LogicalResult lowerDot(tw::DotOp op);
  mlir::LogicalResult lowerUpdate(tw::SoftmaxUpdateOp op);

  // StateLowering.cpp: states of a walk that is cut into parts.
  mlir::LogicalResult lowerStoreState(tw::StoreStateOp op);
  mlir::LogicalResult lowerLoadState(tw::LoadStateOp op);
  mlir::LogicalResult lowerMerge(tw::MergeOp op);
  /// Places of m, l and o in the workspace.
  struct State {
    TileBuffer m, l, o;
  };
  State stateAt(Value batch, Value head, Value row, Value part, int64_t parts, tw::TileType o);

  // ScoreLowering.cpp: operations that evaluate a function at every pair of positions.
  mlir::LogicalResult lowerScore(tw::ScoreOp op);
  mlir::LogicalResult lowerMask(tw::MaskOp op);
  mlir::LogicalResult lowerScoreGradient(tw::ScoreGradientOp op);
  struct ScorePositions;
  ScorePositions positionsOf(Value qRow, Value kRow, Value head, Value batch, bool transposed);
  using AtScore = llvm::function_ref<void(Value panel, Value column, int64_t vector, Value result)>;
  mlir::LogicalResult forEachScore(mlir::FlatSymbolRefAttr function, const ScorePositions &at, const TileBuffer &tile,
                                   const TileBuffer *scores, AtScore body);

  // LoopLowering.cpp: loops over tiles and heads, with tiles carried in place.
  mlir::LogicalResult lowerForeach(tw::ForeachTileOp op);
  mlir::LogicalResult lowerFor(mlir::scf::ForOp loop);
  mlir::LogicalResult finishIteration(mlir::Operation *yield, llvm::ArrayRef<TileBuffer> carried);
  mlir::FailureOr<Emitter::Carried> call(mlir::FlatSymbolRefAttr symbol, mlir::ValueRange operands);

  /// The tile that an operation may overwrite to make its result: the operand's own place when nothing reads the
  /// operand later, else a new one.
  TileBuffer placeOver(Value operand, mlir::Operation *op);
  /// The same with the operand's contents in it.
  TileBuffer claim(Value operand, mlir::Operation *op);
  /// Whether `product` is multiplied by the scale as it leaves the registers: its only reader is a tw.score without a
  /// function.
  static bool scalesOnTheWay(Value product);
  bool diesAt(Value value, mlir::Operation *op) const;
  TileBuffer &panels(Value tile) { return tiles[tile].panels; }
  void assign(Value tile, const TileBuffer &buffer) { tiles[tile].panels = buffer; }
  Value scalar(Value value) { return scalars.lookup(value); }

  tw::KernelOp kernel;
  Emitter e;
  std::optional<Arguments> arguments;
  std::optional<TileStorage> storage;
  llvm::DenseMap<Value, Tile> tiles;
  mlir::IRMapping scalars;
  Type stored; ///< Element type of q, k, v and all that has their shape
  bool ownsKeys;
};

} // namespace tilewright::cpu
