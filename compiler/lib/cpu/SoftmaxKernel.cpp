#include "SoftmaxKernel.h"

#include "Elementary.h"
#include <limits>

using namespace mlir;
using arith::CmpFPredicate;

namespace tilewright::cpu {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Columns handled in one loop iteration: enough independent vectors, with those of a panel, to hide latencies.
int64_t unrollFor(const Emitter &e, const TileBuffer &tile) {
  int64_t columns = std::max<int64_t>(1, 4 / panelVectors(e, tile.rows));
  return tile.cols % columns == 0 ? columns : 1;
}

/// A value per score: a column vector's panel lanes, or a row vector's element at `column`.
Value rowValue(Emitter &e, const TileBuffer &tile, Value panel, Value column, int64_t vector) {
  if (tile.rows == 1) return e.broadcast(e.load(e.f32, e.advance(tile.base, e.mul(column, e.constant(4))), 4));
  return PanelColumns(e, tile, panel).load(e.constant(0), vector);
}

/// Runs `body(column)` for all columns, a few at a time.
void forEachColumn(Emitter &e, const TileBuffer &tile, function_ref<void(Value)> body) {
  int64_t unroll = unrollFor(e, tile);
  e.loop(0, tile.cols, unroll, [&](Value column) {
    for (int64_t u = 0; u < unroll; ++u)
      body(e.add(column, e.constant(u)));
  });
}

/// 2^(x log2 e) for x <= 0.
Value expNonPositive(Emitter &e, Value x) { return emitExp2NonPositive(e, e.mul(x, e.splat(kLog2E))); }

} // namespace

void emitSoftmaxUpdate(Emitter &e, const TileBuffer &m, const TileBuffer &l, const TileBuffer &o, const TileBuffer &s,
                       const TileBuffer &p) {
  forEachPanel(e, s.rows, [&](Value panel) {
    PanelColumns ms(e, m, panel), ls(e, l, panel), os(e, o, panel), scores(e, s, panel), weights(e, p, panel);
    Value first = e.constant(0);
    int64_t vectors = scores.vectors(), unroll = unrollFor(e, s);

    Emitter::Carried before;
    for (int64_t v = 0; v < vectors; ++v)
      before.push_back(ms.load(first, v));
    // A NaN score never becomes the maximum; it makes the row's sum NaN all the same.
    Emitter::Carried now = e.loop(0, s.cols, unroll, before, [&](Value column, ValueRange carried) {
      Emitter::Carried next;
      for (int64_t v = 0; v < vectors; ++v) {
        SmallVector<Value, 4> group;
        for (int64_t u = 0; u < unroll; ++u)
          group.push_back(scores.load(e.add(column, e.constant(u)), v));
        while (group.size() > 1) {
          Value b = group.pop_back_val(), a = group.front();
          group.erase(group.begin());
          group.push_back(e.maxOrSecond(a, b));
        }
        next.push_back(e.maxOrSecond(group[0], carried[v]));
      }
      return next;
    });

    Emitter::Carried reference, sums;
    Value grew;
    for (int64_t v = 0; v < vectors; ++v) {
      // A row that has seen nothing: measured from 0, exp(-inf - 0) is 0 and not NaN.
      Value nothing = e.compare(CmpFPredicate::OEQ, now[v], e.splat(-kInfinity));
      reference.push_back(e.select(nothing, e.splat(0.0), now[v]));
      Value more = e.compare(CmpFPredicate::OGT, now[v], before[v]);
      grew = grew ? Value(arith::OrIOp::create(e, grew, more)) : more;
    }
    e.branch(e.anyLane(grew), [&] {
      Emitter::Carried factors;
      for (int64_t v = 0; v < vectors; ++v) {
        factors.push_back(expNonPositive(e, e.sub(before[v], reference[v])));
        ls.store(e.mul(ls.load(first, v), factors[v]), first, v);
        ms.store(now[v], first, v);
      }
      forEachColumn(e, o, [&](Value column) {
        for (int64_t v = 0; v < vectors; ++v)
          os.store(e.mul(os.load(column, v), factors[v]), column, v);
      });
    });

    // Two partial sums a row: shorter chains of additions, in time and in rounding.
    int64_t partial = unroll > 1 ? 2 : 1;
    for (int64_t i = 0; i < partial * vectors; ++i)
      sums.push_back(e.splat(0.0));
    sums = e.loop(0, s.cols, unroll, sums, [&](Value column, ValueRange carried) {
      Emitter::Carried next(carried);
      for (int64_t u = 0; u < unroll; ++u)
        for (int64_t v = 0; v < vectors; ++v) {
          Value c = e.add(column, e.constant(u));
          Value weight = expNonPositive(e, e.sub(scores.load(c, v), reference[v]));
          weights.store(weight, c, v);
          Value &sum = next[u % partial * vectors + v];
          sum = e.add(sum, weight);
        }
      return next;
    });
    for (int64_t v = 0; v < vectors; ++v) {
      Value sum = partial == 2 ? e.add(sums[v], sums[vectors + v]) : sums[v];
      ls.store(e.add(ls.load(first, v), sum), first, v);
    }
  });
}

void emitMerge(Emitter &e, const TileBuffer &m, const TileBuffer &l, const TileBuffer &o, const TileBuffer &otherM,
               const TileBuffer &otherL, const TileBuffer &otherO) {
  forEachPanel(e, o.rows, [&](Value panel) {
    PanelColumns ms(e, m, panel), ls(e, l, panel), os(e, o, panel);
    PanelColumns otherMs(e, otherM, panel), otherLs(e, otherL, panel), otherOs(e, otherO, panel);
    Value first = e.constant(0);
    Emitter::Carried factors, otherFactors;
    for (int64_t v = 0; v < os.vectors(); ++v) {
      Value a = ms.load(first, v), b = otherMs.load(first, v), max = e.maxOrSecond(a, b);
      // Neither has seen anything: measured from 0, exp(-inf - 0) is 0 and not NaN.
      Value nothing = e.compare(CmpFPredicate::OEQ, max, e.splat(-kInfinity));
      Value reference = e.select(nothing, e.splat(0.0), max);
      factors.push_back(expNonPositive(e, e.sub(a, reference)));
      otherFactors.push_back(expNonPositive(e, e.sub(b, reference)));
      Value sum = e.fma(otherLs.load(first, v), otherFactors[v], e.mul(ls.load(first, v), factors[v]));
      ls.store(sum, first, v);
      ms.store(max, first, v);
    }
    forEachColumn(e, o, [&](Value column) {
      for (int64_t v = 0; v < os.vectors(); ++v) {
        Value own = e.mul(os.load(column, v), factors[v]);
        os.store(e.fma(otherOs.load(column, v), otherFactors[v], own), column, v);
      }
    });
  });
}

void emitSoftmaxFinish(Emitter &e, const TileBuffer &m, const TileBuffer &l, const TileBuffer &o, const TileBuffer &lse,
                       const TileBuffer &rest) {
  forEachPanel(e, o.rows, [&](Value panel) {
    PanelColumns ms(e, m, panel), ls(e, l, panel), os(e, o, panel), results(e, lse, panel), rests(e, rest, panel);
    Value first = e.constant(0);
    Emitter::Carried sums;
    for (int64_t v = 0; v < os.vectors(); ++v) {
      Value sum = ls.load(first, v);
      Value nothing = e.compare(CmpFPredicate::OEQ, sum, e.splat(0.0));
      Value max = ms.load(first, v), logarithm = emitLog(e, sum), total = e.add(max, logarithm);
      // Exact while max is the larger of the two, the only case in which the rest matters (Dekker's fast sum).
      Value left = e.add(e.sub(max, total), logarithm);
      results.store(e.select(nothing, e.splat(-kInfinity), total), first, v);
      rests.store(e.select(nothing, e.splat(0.0), left), first, v);
      sums.push_back(e.select(nothing, e.splat(1.0), sum)); // o is 0 there
    }
    // A true division: n weights of 1 sum to n, and n / n is exactly 1 where n * (1 / n) need not be.
    forEachColumn(e, o, [&](Value column) {
      for (int64_t v = 0; v < os.vectors(); ++v)
        os.store(e.div(os.load(column, v), sums[v]), column, v);
    });
  });
}

void emitProbability(Emitter &e, const TileBuffer &s, const TileBuffer &lse, const TileBuffer &rest,
                     const TileBuffer &p) {
  forEachPanel(e, s.rows, [&](Value panel) {
    PanelColumns scores(e, s, panel), weights(e, p, panel);
    forEachColumn(e, s, [&](Value column) {
      for (int64_t v = 0; v < scores.vectors(); ++v) {
        Value score = scores.load(column, v);
        Value exponent = e.sub(e.sub(score, rowValue(e, lse, panel, column, v)), rowValue(e, rest, panel, column, v));
        // A score may come out above its row's LSE by as much as both are rounded, which is much where they are large.
        Value weight = expNonPositive(e, e.minOrSecond(e.splat(0.0), exponent));
        // Hidden keys are 0 even where lse is -inf (nothing seen) or NaN, which the difference would turn into NaN.
        Value hidden = e.compare(CmpFPredicate::OEQ, score, e.splat(-kInfinity));
        weights.store(e.select(hidden, e.splat(0.0), weight), column, v);
      }
    });
  });
}

void emitSoftmaxGradient(Emitter &e, const TileBuffer &p, const TileBuffer &dp, const TileBuffer &delta,
                         const TileBuffer &ds) {
  forEachPanel(e, p.rows, [&](Value panel) {
    PanelColumns weights(e, p, panel), gradients(e, dp, panel), results(e, ds, panel);
    forEachColumn(e, p, [&](Value column) {
      for (int64_t v = 0; v < weights.vectors(); ++v) {
        Value weight = weights.load(column, v);
        Value gradient = e.sub(gradients.load(column, v), rowValue(e, delta, panel, column, v));
        Value none = e.compare(CmpFPredicate::OEQ, weight, e.splat(0.0));
        results.store(e.select(none, e.splat(0.0), e.mul(weight, gradient)), column, v);
      }
    });
  });
}

void emitScale(Emitter &e, const TileBuffer &from, Value factor, const TileBuffer &to) {
  forEachPanel(e, from.rows, [&](Value panel) {
    PanelColumns source(e, from, panel), result(e, to, panel);
    Value all = e.broadcast(factor);
    forEachColumn(e, from, [&](Value column) {
      for (int64_t v = 0; v < source.vectors(); ++v)
        result.store(e.mul(source.load(column, v), all), column, v);
    });
  });
}

void emitRowDot(Emitter &e, const TileBuffer &a, const TileBuffer &b, const TileBuffer &result) {
  forEachPanel(e, a.rows, [&](Value panel) {
    PanelColumns left(e, a, panel), right(e, b, panel), sum(e, result, panel);
    Emitter::Carried sums(left.vectors(), e.splat(0.0));
    sums = e.loop(0, a.cols, 1, sums, [&](Value column, ValueRange carried) {
      Emitter::Carried next;
      for (int64_t v = 0; v < left.vectors(); ++v)
        next.push_back(e.fma(left.load(column, v), right.load(column, v), carried[v]));
      return next;
    });
    for (int64_t v = 0; v < left.vectors(); ++v)
      sum.store(sums[v], e.constant(0), v);
  });
}

void emitFill(Emitter &e, const TileBuffer &tile, float value) {
  forEachPanel(e, tile.rows, [&](Value panel) {
    PanelColumns columns(e, tile, panel);
    forEachColumn(e, tile, [&](Value column) {
      for (int64_t v = 0; v < columns.vectors(); ++v)
        columns.store(e.splat(value), column, v);
    });
  });
}

void emitCopy(Emitter &e, const TileBuffer &from, const TileBuffer &to) {
  forEachPanel(e, from.rows, [&](Value panel) {
    PanelColumns source(e, from, panel), result(e, to, panel);
    forEachColumn(e, from, [&](Value column) {
      for (int64_t v = 0; v < source.vectors(); ++v)
        result.store(source.load(column, v), column, v);
    });
  });
}

} // namespace tilewright::cpu
