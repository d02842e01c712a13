// tw-tile: writes one kernel of a tw.attention as a loop over tiles, and moves its mask and score regions into
// functions.
//
// The kernels are FlashAttention-2's (Dao 2023): forward is algorithm 1; delta, dkv and dq together are algorithm 2,
// cut in two loops so that no two blocks add to the same gradient; delta, fused and convert are algorithm 2 as it
// stands. A forward in parts and its merge are Flash-Decoding's (Dao, Haziza, Massa and Sizov 2023).
#include "tilewright/passes/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include <limits>

using namespace mlir;

namespace tilewright {
#define GEN_PASS_DEF_TILE
#include "tilewright/passes/Passes.h.inc"

namespace {

/// floor_mod(a, m) = a - m floor(a / m), in arith operations.
void expandFloorMod(Operation *root) {
  root->walk([](tw::FloorModOp op) {
    ImplicitLocOpBuilder builder(op.getLoc(), op);
    Value quotient = arith::FloorDivSIOp::create(builder, op.getA(), op.getM());
    Value whole = arith::MulIOp::create(builder, quotient, op.getM());
    op.replaceAllUsesWith(Value(arith::SubIOp::create(builder, op.getA(), whole)));
    op.erase();
  });
}

/// Moves a region of the problem into a private function; a null symbol for an empty region.
FlatSymbolRefAttr outline(tw::AttentionOp attention, Region &region, StringRef suffix) {
  if (region.empty()) return {};
  ImplicitLocOpBuilder builder(attention.getLoc(), attention);
  Block &block = region.front();
  auto yield = cast<tw::YieldOp>(block.getTerminator());
  std::string name = (attention.getSymName() + "_" + suffix).str();
  auto function = func::FuncOp::create(
      builder, name, builder.getFunctionType(block.getArgumentTypes(), yield.getValues().getTypes()));
  function.setPrivate();
  function.getBody().takeBody(region);
  builder.setInsertionPoint(yield);
  func::ReturnOp::create(builder, yield.getValues());
  yield.erase();
  expandFloorMod(function);
  return FlatSymbolRefAttr::get(function);
}

/// Builds the kernels' bodies.
class KernelWriter {
public:
  KernelWriter(tw::AttentionOp attention, int64_t tileQ, int64_t tileKV, int64_t splitKV)
      : attention(attention), builder(attention.getLoc(), attention), tileQ(tileQ), tileKV(tileKV), splitKV(splitKV),
        dimQK(attention.getDimQk()), dimV(attention.getDimV()), group(attention.getGroup()),
        stored(attention.getDtype()), position(attention.getPosition()) {
    std::string name = attention.getSymName().str();
    kvBounds = FlatSymbolRefAttr::get(builder.getContext(), name + "_kv_bounds");
    qBounds = FlatSymbolRefAttr::get(builder.getContext(), name + "_q_bounds");
    classes = FlatSymbolRefAttr::get(builder.getContext(), name + "_classes");
    mask = outline(attention, attention.getMask(), "mask");
    score = outline(attention, attention.getScore(), "score");
    scoreGradient = outline(attention, attention.getScoreGradient(), "score_gradient");
  }

  LogicalResult write(StringRef role, StringRef symbol) {
    bool ownsKV = role == "dkv" || role == "fused";
    auto kernel = tw::KernelOp::create(builder, symbol, role, ownsKV ? tileKV : tileQ, ownsKV ? tileQ : tileKV, group,
                                       role == "forward" ? splitKV : 1);
    Block *body = builder.createBlock(&kernel.getBody());
    bool inParts = kernel.getParts() > 1;
    for (int i = 0; i < (inParts ? 6 : 5); ++i)
      body->addArgument(position, builder.getLoc());
    row = body->getArgument(0);
    head = body->getArgument(1);
    batch = body->getArgument(2);
    if (inParts) part = body->getArgument(5);
    if (role == "forward") writeForward();
    else if (role == "delta") writeDelta();
    else if (role == "dq") writeDQ();
    else if (role == "dkv") writeDKV(/*addsDQ=*/false);
    else if (role == "fused") writeDKV(/*addsDQ=*/true);
    else if (role == "convert") writeConvert();
    else if (role == "merge")
      writeMerge();
    else
      return attention.emitOpError("unknown kernel role '")
             << role << "': expected forward, delta, dq, dkv, fused, convert or merge";
    tw::YieldOp::create(builder);
    return success();
  }

private:
  tw::TileType tile(int64_t rows, int64_t cols, Type element) { return tw::TileType::get(rows, cols, element); }
  tw::TileType f32(int64_t rows, int64_t cols) { return tile(rows, cols, builder.getF32Type()); }

  Value load(StringRef tensor, Value ofHead, Value atRow, int64_t rows, int64_t cols) {
    return tw::LoadOp::create(builder, tile(rows, cols, stored), tensor, batch, ofHead, atRow);
  }
  Value loadRowValues(StringRef tensor, Value ofHead, Value atRow, tw::TileType type) {
    return tw::LoadOp::create(builder, type, tensor, batch, ofHead, atRow);
  }
  void store(Value value, StringRef tensor) { tw::StoreOp::create(builder, value, tensor, batch, head, row); }
  Value fill(float value, tw::TileType type) {
    return tw::FillOp::create(builder, type, builder.getF32FloatAttr(value));
  }
  Value dot(Value a, Value b, Value acc = {}) {
    auto left = cast<tw::TileType>(a.getType()), right = cast<tw::TileType>(b.getType());
    return tw::DotOp::create(builder, f32(left.getRows(), right.getCols()), a, b, acc, false);
  }
  Value dotTransposed(Value a, Value b) {
    auto left = cast<tw::TileType>(a.getType()), right = cast<tw::TileType>(b.getType());
    return tw::DotOp::create(builder, f32(left.getRows(), right.getRows()), a, b, Value(), true);
  }

  /// score(scale * s), masked.
  Value scoreAndMask(Value s, Value partial, Value qRow, Value kRow, Value qHead, bool transposed) {
    Value scored = tw::ScoreOp::create(builder, s, qRow, kRow, qHead, batch, score, transposed);
    return tw::MaskOp::create(builder, scored, partial, qRow, kRow, qHead, batch, mask, transposed);
  }

  /// ds = p (dp - delta) score'(scale s); the factor `scale` is applied once, to the finished gradient.
  Value scoresGradient(Value p, Value dp, Value delta, Value s, Value qRow, Value kRow, Value qHead, bool transposed) {
    Value ds = tw::SoftmaxGradientOp::create(builder, p, dp, delta, transposed);
    if (!scoreGradient) return ds;
    return tw::ScoreGradientOp::create(builder, ds, s, qRow, kRow, qHead, batch, scoreGradient.getValue(), transposed);
  }

  Value kvHead() {
    if (group == 1) return head;
    return arith::DivSIOp::create(builder, head, positionOf(group));
  }

  /// A foreach_tile along `axis` carrying `inits`; `body` gets (row, partial, carried) and returns the next ones.
  using LoopBody = llvm::function_ref<SmallVector<Value>(Value, Value, ValueRange)>;
  ValueRange foreachTile(StringRef axis, Value ofHead, ValueRange inits, LoopBody body) {
    bool kv = axis == "kv";
    bool interval = attention->hasAttr(kv ? "interval_kv" : "interval_q");
    auto loop = tw::ForeachTileOp::create(
        builder, inits.getTypes(), axis, row, ofHead, batch, part, inits, kv ? tileQ : tileKV, kv ? tileKV : tileQ,
        (kv ? kvBounds : qBounds).getValue(), interval ? FlatSymbolRefAttr() : classes, interval, part ? splitKV : 1);
    OpBuilder::InsertionGuard guard(builder);
    Block *block = builder.createBlock(&loop.getBody());
    block->addArgument(position, builder.getLoc());
    block->addArgument(builder.getI1Type(), builder.getLoc());
    for (Value init : inits) block->addArgument(init.getType(), builder.getLoc());
    SmallVector<Value> next = body(block->getArgument(0), block->getArgument(1), block->getArguments().drop_front(2));
    tw::YieldOp::create(builder, next);
    return loop.getResults();
  }

  Value positionOf(int64_t value) {
    return arith::ConstantOp::create(builder, builder.getIntegerAttr(position, value));
  }

  /// (-inf, 0, 0), the state of rows that have seen nothing.
  SmallVector<Value> emptyState() {
    return {fill(-std::numeric_limits<float>::infinity(), f32(tileQ, 1)), fill(0, f32(tileQ, 1)),
            fill(0, f32(tileQ, dimV))};
  }

  void finish(ValueRange state) {
    auto finish = tw::SoftmaxFinishOp::create(builder, state[0], state[1], state[2]);
    store(finish.getOResult(), "o");
    store(finish.getLse(), "lse");
    store(finish.getRest(), "lse_rest");
  }

  void writeForward() {
    Value kv = kvHead();
    Value q = load("q", head, row, tileQ, dimQK);
    ValueRange state = foreachTile("kv", head, emptyState(), [&](Value kRow, Value partial, ValueRange carried) {
      Value k = load("k", kv, kRow, tileKV, dimQK);
      Value s = scoreAndMask(dotTransposed(q, k), partial, row, kRow, head, false);
      auto update = tw::SoftmaxUpdateOp::create(builder, carried[0], carried[1], carried[2], s);
      Value v = load("v", kv, kRow, tileKV, dimV);
      return SmallVector<Value>{update.getMNext(), update.getLNext(), dot(update.getP(), v, update.getONext())};
    });
    if (!part) return finish(state);
    tw::StoreStateOp::create(builder, state[0], state[1], state[2], batch, head, row, part, splitKV);
  }

  /// States of parts in their order, so that the result does not depend on which part was ready first.
  void writeMerge() {
    SmallVector<Value> state = emptyState();
    auto loop = scf::ForOp::create(builder, positionOf(0), positionOf(splitKV), positionOf(1), state);
    {
      OpBuilder::InsertionGuard guard(builder);
      builder.setInsertionPointToStart(loop.getBody());
      auto next = tw::LoadStateOp::create(builder, state[0].getType(), state[1].getType(), state[2].getType(), batch,
                                          head, row, loop.getInductionVar(), splitKV, stored);
      ValueRange carried = loop.getRegionIterArgs();
      auto merged =
          tw::MergeOp::create(builder, carried[0], carried[1], carried[2], next.getM(), next.getL(), next.getO());
      scf::YieldOp::create(builder, merged.getResults());
    }
    finish(loop.getResults());
  }

  void writeDelta() {
    Value o = load("o", head, row, tileQ, dimV), dO = load("do", head, row, tileQ, dimV);
    store(tw::RowDotOp::create(builder, f32(tileQ, 1), o, dO), "delta");
  }

  void writeDQ() {
    Value kv = kvHead();
    Value q = load("q", head, row, tileQ, dimQK), dO = load("do", head, row, tileQ, dimV);
    tw::TileType rowValues = f32(tileQ, 1);
    Value lse = loadRowValues("lse", head, row, rowValues), rest = loadRowValues("lse_rest", head, row, rowValues);
    Value delta = loadRowValues("delta", head, row, rowValues);
    Value zero = fill(0, f32(tileQ, dimQK));
    ValueRange result = foreachTile("kv", head, {zero}, [&](Value kRow, Value partial, ValueRange carried) {
      Value k = load("k", kv, kRow, tileKV, dimQK), v = load("v", kv, kRow, tileKV, dimV);
      Value s = dotTransposed(q, k);
      Value masked = scoreAndMask(s, partial, row, kRow, head, false);
      Value p = tw::ProbabilityOp::create(builder, masked, lse, rest, false);
      Value ds = scoresGradient(p, dotTransposed(dO, v), delta, s, row, kRow, head, false);
      return SmallVector<Value>{dot(ds, k, carried[0])};
    });
    store(tw::ScaleOp::create(builder, result[0]), "dq");
  }

  /// Scores are computed transposed (rows k, columns q), so that p and ds are the left operands of both products as
  /// they stand. With `addsDQ` each tile's share of dQ goes to sums in global memory.
  void writeDKV(bool addsDQ) {
    Value k = load("k", head, row, tileKV, dimQK), v = load("v", head, row, tileKV, dimV);
    Value dkZero = fill(0, f32(tileKV, dimQK)), dvZero = fill(0, f32(tileKV, dimV));
    auto overHead = [&](Value qHead, ValueRange sums) {
      return foreachTile("q", qHead, sums, [&](Value qRow, Value partial, ValueRange carried) {
        Value q = load("q", qHead, qRow, tileQ, dimQK), dO = load("do", qHead, qRow, tileQ, dimV);
        tw::TileType rowValues = f32(1, tileQ);
        Value lse = loadRowValues("lse", qHead, qRow, rowValues), rest = loadRowValues("lse_rest", qHead, qRow, rowValues);
        Value delta = loadRowValues("delta", qHead, qRow, rowValues);
        Value s = dotTransposed(k, q);
        Value masked = scoreAndMask(s, partial, qRow, row, qHead, true);
        Value p = tw::ProbabilityOp::create(builder, masked, lse, rest, true);
        Value dv = dot(p, dO, carried[1]);
        Value ds = scoresGradient(p, dotTransposed(v, dO), delta, s, qRow, row, qHead, true);
        Value dk = dot(ds, q, carried[0]);
        if (addsDQ) tw::AccumulateOp::create(builder, ds, k, "dq", batch, qHead, qRow, centresSums());
        return SmallVector<Value>{dk, dv};
      });
    };
    SmallVector<Value> sums{dkZero, dvZero};
    if (group == 1) {
      sums = llvm::to_vector(overHead(head, sums));
    } else { // the group's q heads in turn
      Value first = arith::MulIOp::create(builder, head, positionOf(group));
      auto loop = scf::ForOp::create(builder, positionOf(0), positionOf(group), positionOf(1), sums);
      OpBuilder::InsertionGuard guard(builder);
      builder.setInsertionPointToStart(loop.getBody());
      Value qHead = arith::AddIOp::create(builder, first, loop.getInductionVar());
      scf::YieldOp::create(builder, overHead(qHead, loop.getRegionIterArgs()));
      sums = llvm::to_vector(ValueRange(loop.getResults()));
    }
    store(tw::ScaleOp::create(builder, sums[0]), "dk");
    store(sums[1], "dv");
  }

  void writeConvert() {
    bool centred = centresSums();
    Value sums = tw::LoadSumsOp::create(builder, f32(tileQ, dimQK), "dq", batch, head, row, stored, centred,
                                        centred ? kvBounds : FlatSymbolRefAttr(), centred ? mask : FlatSymbolRefAttr());
    store(tw::ScaleOp::create(builder, sums), "dq");
  }

  /// A score function's slopes would break the zero row sums of dS that centring rests on.
  bool centresSums() { return !score; }

  tw::AttentionOp attention;
  ImplicitLocOpBuilder builder;
  int64_t tileQ, tileKV, splitKV, dimQK, dimV, group;
  Type stored, position;
  FlatSymbolRefAttr kvBounds, qBounds, classes, mask, score, scoreGradient;
  Value row, head, batch;
  Value part; ///< Null in a kernel of one part
};

struct TilePass : impl::TileBase<TilePass> {
  using TileBase::TileBase;

  void runOnOperation() override {
    SmallVector<tw::AttentionOp> problems(getOperation().getOps<tw::AttentionOp>());
    for (tw::AttentionOp attention : problems) {
      if (failed(KernelWriter(attention, tileQ, tileKV, splitKV).write(role, symbol))) return signalPassFailure();
      attention.erase();
    }
  }
};

} // namespace
} // namespace tilewright
