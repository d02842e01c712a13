// Operations that evaluate a function of positions for every score of a tile: tw.score, tw.mask, tw.score_gradient.
#include "KernelLowering.h"

#include "SoftmaxKernel.h"
#include <limits>

using namespace mlir;
using arith::CmpFPredicate;
using arith::CmpIPredicate;

namespace tilewright::cpu {

/// Where a tile of scores lies. Own rows are queries, or keys when transposed.
struct KernelLowering::ScorePositions {
  bool ownKeys;
  Value ownRow, walkRow;       ///< First positions
  Value ownLength, walkLength; ///< i64
  Value sq, sk, head, batch;
  Value walked; ///< Columns of the tile that exist: walkLength - walkRow, at most the tile's (i64)
};

KernelLowering::ScorePositions KernelLowering::positionsOf(Value qRow, Value kRow, Value head, Value batch,
                                                           bool transposed) {
  Type position = qRow.getType();
  ScorePositions at;
  at.ownKeys = transposed;
  at.ownRow = scalar(transposed ? kRow : qRow);
  at.walkRow = scalar(transposed ? qRow : kRow);
  at.ownLength = transposed ? arguments->seqKV() : arguments->seqQ();
  at.walkLength = transposed ? arguments->seqQ() : arguments->seqKV();
  at.sq = e.toPosition(position, arguments->seqQ());
  at.sk = e.toPosition(position, arguments->seqKV());
  at.head = scalar(head);
  at.batch = scalar(batch);
  at.walked = e.sub(at.walkLength, e.toI64(at.walkRow));
  return at;
}

/// Evaluates a function for every score of `tile` whose walked position exists; `body` gets each result, a vector over
/// own rows. With `scores`, the function's first argument is scale times the element of that tile.
LogicalResult KernelLowering::forEachScore(FlatSymbolRefAttr symbol, const ScorePositions &at, const TileBuffer &tile,
                                           const TileBuffer *scores, AtScore body) {
  auto function = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(kernel, symbol);
  if (!function) return kernel.emitOpError("refers to ") << symbol << ", which does not exist";
  Type position = at.ownRow.getType();
  SmallVector<Attribute, 16> numbers;
  for (int64_t lane = 0; lane < e.lanes; ++lane)
    numbers.push_back(e.getIntegerAttr(position, lane));
  Value laneNumbers = arith::ConstantOp::create(e, DenseElementsAttr::get(e.vectorOf(position), numbers));
  Value scale = scores ? e.broadcast(arguments->scale()) : Value();
  Value existing = e.minSigned(at.walked, e.constant(tile.cols));
  int64_t vectors = panelVectors(e, tile.rows);

  LogicalResult result = success();
  forEachPanel(e, tile.rows, [&](Value panel) {
    SmallVector<InlineFunction, 3> functions;
    for (int64_t v = 0; v < vectors; ++v) {
      Value offset = e.add(e.mul(panel, e.constant(vectors * e.lanes)), e.constant(v * e.lanes));
      Value first = e.add(at.ownRow, e.toPosition(position, offset));
      Value own = e.add(e.broadcast(first), laneNumbers);
      SmallVector<Value, 7> known;
      if (scores) known.push_back({});
      known.append({at.ownKeys ? Value() : own, at.ownKeys ? own : Value(), at.sq, at.sk, at.head, at.batch});
      functions.emplace_back(e, *arguments, function);
      if (failed(functions.back().bindArguments(known, LaneRange{e.toI64(first), at.ownLength}))) result = failure();
    }
    if (failed(result)) return;
    e.loop(e.constant(0), existing, 1, [&](Value column) {
      Value walk = e.add(at.walkRow, e.toPosition(position, column));
      for (int64_t v = 0; v < vectors; ++v) {
        SmallVector<Value, 2> late;
        if (scores) late.push_back(e.mul(PanelColumns(e, *scores, panel).load(column, v), scale));
        late.push_back(walk);
        FailureOr<Emitter::Carried> values = functions[v].evaluate(late);
        if (failed(values)) {
          result = failure();
          return;
        }
        body(panel, column, v, e.broadcast((*values)[0]));
      }
    });
  });
  return result;
}

/// Stores `value` into the columns of `tile` from `first` (i64) on.
static void fillColumns(Emitter &e, const TileBuffer &tile, Value first, double value) {
  forEachPanel(e, tile.rows, [&](Value panel) {
    PanelColumns columns(e, tile, panel);
    e.loop(e.minSigned(first, e.constant(tile.cols)), e.constant(tile.cols), 1, [&](Value column) {
      for (int64_t v = 0; v < columns.vectors(); ++v)
        columns.store(e.splat(value), column, v);
    });
  });
}

LogicalResult KernelLowering::lowerScore(tw::ScoreOp op) {
  TileBuffer from = panels(op.getS()), to = placeOver(op.getS(), op);
  assign(op.getResult(), to);
  if (!op.getFn()) {
    if (!scalesOnTheWay(op.getS())) emitScale(e, from, arguments->scale(), to);
    return success();
  }
  ScorePositions at = positionsOf(op.getQRow(), op.getKRow(), op.getHead(), op.getBatch(), op.getTransposed());
  fillColumns(e, to, at.walked, 0.0);
  return forEachScore(op.getFnAttr(), at, from, &from, [&](Value panel, Value column, int64_t v, Value result) {
    PanelColumns(e, to, panel).store(result, column, v);
  });
}

LogicalResult KernelLowering::lowerMask(tw::MaskOp op) {
  TileBuffer tile = claim(op.getS(), op);
  assign(op.getResult(), tile);
  ScorePositions at = positionsOf(op.getQRow(), op.getKRow(), op.getHead(), op.getBatch(), op.getTransposed());
  const double hidden = -std::numeric_limits<double>::infinity();
  LogicalResult result = success();
  e.branch(scalar(op.getPartial()), [&] {
    fillColumns(e, tile, at.walked, hidden);
    if (!op.getFn()) return;
    result = forEachScore(op.getFnAttr(), at, tile, nullptr, [&](Value panel, Value column, int64_t v, Value visible) {
      PanelColumns columns(e, tile, panel);
      columns.store(e.select(visible, columns.load(column, v), e.splat(hidden)), column, v);
    });
  });
  return result;
}

LogicalResult KernelLowering::lowerScoreGradient(tw::ScoreGradientOp op) {
  TileBuffer from = panels(op.getDs()), to = placeOver(op.getDs(), op), scores = panels(op.getS());
  assign(op.getResult(), to);
  ScorePositions at = positionsOf(op.getQRow(), op.getKRow(), op.getHead(), op.getBatch(), op.getTransposed());
  fillColumns(e, to, at.walked, 0.0);
  return forEachScore(op.getFnAttr(), at, from, &scores, [&](Value panel, Value column, int64_t v, Value slope) {
    Value gradient = PanelColumns(e, from, panel).load(column, v);
    // Hidden scores have gradient 0 even where the function has no finite slope.
    Value none = e.compare(CmpFPredicate::OEQ, gradient, e.splat(0.0));
    PanelColumns(e, to, panel).store(e.select(none, e.splat(0.0), e.mul(gradient, slope)), column, v);
  });
}

} // namespace tilewright::cpu
