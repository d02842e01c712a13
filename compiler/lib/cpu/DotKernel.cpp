#include "DotKernel.h"

using namespace mlir;
using arith::CmpFPredicate;

namespace tilewright::cpu {

namespace {

/// Columns of C whose accumulators stay in registers, beside the panel's vectors of A and a broadcast. AVX-512 has 32
/// registers: 24 + 4 + 1 for four vectors a panel, 6 columns, 10 loads for 24 multiply-adds. AVX2 and SSE have 16: 12 +
/// 2 + 1. Fewer than 8 accumulators would leave the two multiply-add units (4 cycles of latency each) waiting.
int64_t columnsInRegisters(const Emitter &e, int64_t vectors) {
  return std::min<int64_t>((e.lanes == 16 ? 24 : 12) / vectors, 12);
}

/// Steps of the inner dimension written out in a loop body: enough to hide the loop's own instructions.
constexpr int64_t kUnroll = 2;

class DotEmitter {
public:
  DotEmitter(Emitter &e, const TileBuffer &a, const TileBuffer &b, const TileBuffer &c, const DotOptions &options)
      : e(e), a(a), b(b), c(c), options(options), vectors(panelVectors(e, a.rows)) {}

  void emit() {
    forEachPanel(e, a.rows, [&](Value panel) {
      PanelColumns left(e, a, panel), result(e, c, panel);
      int64_t block = columnsInRegisters(e, vectors), whole = c.cols / block * block;
      if (whole) e.loop(0, whole, block, [&](Value column) { emitBlock(left, result, column, block); });
      if (whole < c.cols) emitBlock(left, result, e.constant(whole), c.cols - whole);
    });
  }

  /// One column at a time, dropping products whose weight is 0.
  void emitSkippingZeros() {
    forEachPanel(e, a.rows, [&](Value panel) {
      PanelColumns left(e, a, panel), result(e, c, panel);
      e.loop(0, c.cols, 1, [&](Value column) {
        Value start = columnOfB(column);
        Emitter::Carried sums;
        for (int64_t v = 0; v < vectors; ++v)
          sums.push_back(options.accumulate ? result.load(column, v) : e.splat(0.0));
        sums = e.loop(0, a.cols, 1, sums, [&](Value k, ValueRange carried) {
          Value scalar = e.broadcast(e.load(e.f32, e.advance(start, e.mul(k, e.constant(stepOfB()))), 4));
          Emitter::Carried next;
          for (int64_t v = 0; v < vectors; ++v) {
            Value weight = left.load(k, v);
            Value sum = e.fma(weight, scalar, carried[v]);
            Value skip = e.compare(CmpFPredicate::OEQ, weight, e.splat(0.0));
            next.push_back(e.select(skip, carried[v], sum));
          }
          return next;
        });
        for (int64_t v = 0; v < vectors; ++v)
          result.store(sums[v], column, v);
      });
    });
  }

private:
  /// Bytes between neighbouring steps of the inner dimension in B, and between neighbouring columns of C.
  int64_t stepOfB() const { return 4 * (options.transposeB ? 1 : b.cols); }
  int64_t columnStepOfB() const { return 4 * (options.transposeB ? b.cols : 1); }
  Value columnOfB(Value column) { return e.advance(b.base, e.mul(column, e.constant(columnStepOfB()))); }

  /// `count` columns of C from `column` on, for one panel.
  void emitBlock(const PanelColumns &left, const PanelColumns &result, Value column, int64_t count) {
    Value start = columnOfB(column);
    Emitter::Carried sums;
    for (int64_t j = 0; j < count; ++j)
      for (int64_t v = 0; v < vectors; ++v)
        sums.push_back(options.accumulate ? result.load(e.add(column, e.constant(j)), v) : e.splat(0.0));

    auto steps = [&](Value k, ValueRange carried, int64_t number) {
      Emitter::Carried next(carried);
      Value fromB = e.advance(start, e.mul(k, e.constant(stepOfB())));
      Value fromA = left.address(k, 0);
      for (int64_t step = 0; step < number; ++step) {
        SmallVector<Value, 4> weights;
        for (int64_t v = 0; v < vectors; ++v)
          weights.push_back(
              e.load(e.vectorOf(e.f32), e.advance(fromA, (step * vectors + v) * e.lanes * 4), 4 * e.lanes));
        for (int64_t j = 0; j < count; ++j) {
          Value scalar = e.load(e.f32, e.advance(fromB, step * stepOfB() + j * columnStepOfB()), 4);
          Value factor = e.broadcast(scalar);
          for (int64_t v = 0; v < vectors; ++v) {
            Value &sum = next[j * vectors + v];
            sum = e.fma(weights[v], factor, sum);
          }
        }
      }
      return next;
    };
    int64_t inner = a.cols, whole = inner / kUnroll * kUnroll;
    if (whole)
      sums = e.loop(0, whole, kUnroll, sums, [&](Value k, ValueRange carried) { return steps(k, carried, kUnroll); });
    if (whole < inner) sums = steps(e.constant(whole), sums, inner - whole);

    Value factor = options.factor ? e.broadcast(options.factor) : Value();
    for (int64_t j = 0; j < count; ++j)
      for (int64_t v = 0; v < vectors; ++v) {
        Value sum = sums[j * vectors + v];
        result.store(factor ? e.mul(sum, factor) : sum, e.add(column, e.constant(j)), v);
      }
  }

  Emitter &e;
  const TileBuffer &a, &b, &c;
  const DotOptions &options;
  int64_t vectors;
};

} // namespace

void emitDot(Emitter &e, const TileBuffer &a, const TileBuffer &b, const TileBuffer &c, const DotOptions &options) {
  DotEmitter dot(e, a, b, c, options);
  if (!options.skipZeros || !b.finite) return dot.emit();
  e.branch(
      b.finite, [&] { dot.emit(); }, [&] { dot.emitSkippingZeros(); });
}

} // namespace tilewright::cpu
