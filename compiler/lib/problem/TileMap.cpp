#include "tilewright/problem/TileMap.h"

#include "IntegerInterpreter.h"
#include "tilewright/expr/Parser.h"
#include "tilewright/passes/Pipeline.h"
#include "tilewright/problem/BuildProblem.h"
#include "mlir/IR/MLIRContext.h"

using namespace mlir;

namespace tilewright {
namespace {

/// More elements of partial tiles than this are counted by sampling rows instead.
constexpr int64_t kExactPairs = int64_t{8} << 20;

int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

class TileCounter {
public:
  TileCounter(const Problem &problem, int64_t tileQ, int64_t tileKV, const std::vector<expr::TableData> &tables,
              ModuleOp module)
      : problem(problem), tileQ(tileQ), tileKV(tileKV), tables(tables) {
    for (const TableSpec &spec : problem.tables)
      strides.push_back(spec.axes.size() == 2 ? tables[strides.size()].extent : 0);
    std::string name = kAttentionName;
    bounds.emplace(module.lookupSymbol<func::FuncOp>(name + "_kv_bounds"), tables, strides);
    classes.emplace(module.lookupSymbol<func::FuncOp>(name + "_classes"), tables, strides);
    interval = module.lookupSymbol(name)->hasAttr("interval_kv");
  }

  /// Calls `visit(i, j, class)` for every tile of (head, batch) that is not empty.
  template <class Visitor> void visitTiles(int64_t head, int64_t batch, Visitor &&visit) {
    for (int64_t i = 0; i < ceilDiv(problem.seqQ, tileQ); ++i) {
      int64_t qFirst = i * tileQ, qLast = qFirst + tileQ - 1;
      ArrayRef<int64_t> b = bounds->call({qFirst, qLast, problem.seqQ, problem.seqKV, head, batch});
      int64_t begin = b[0], end = b[1], fullBegin = b[2], fullEnd = b[3];
      if (begin >= end) continue;
      for (int64_t j = begin / tileKV; j < ceilDiv(end, tileKV); ++j) {
        int64_t kFirst = j * tileKV, kLast = kFirst + tileKV - 1;
        bool possible = true, certain = fullBegin <= kFirst && kLast < fullEnd;
        if (!interval) {
          ArrayRef<int64_t> c = classes->call({qFirst, qLast, kFirst, kLast, problem.seqQ, problem.seqKV, head, batch});
          possible = c[0];
          certain = c[1];
        }
        bool inside = kLast < problem.seqKV;
        if (possible) visit(i, j, certain && inside ? TileClass::Full : TileClass::Partial);
      }
    }
  }

  /// Visible pairs of (head, batch) where each row's are one interval.
  double intervalPairs(int64_t head, int64_t batch) {
    double pairs = 0;
    for (int64_t q = 0; q < problem.seqQ; ++q) {
      ArrayRef<int64_t> b = bounds->call({q, q, problem.seqQ, problem.seqKV, head, batch});
      pairs += static_cast<double>(std::max<int64_t>(0, b[1] - b[0]));
    }
    return pairs;
  }

  bool interval = false;

private:
  const Problem &problem;
  int64_t tileQ, tileKV;
  const std::vector<expr::TableData> &tables;
  std::vector<int64_t> strides;
  std::optional<IntegerInterpreter> bounds, classes;
};

/// Visible pairs of (head, batch) by evaluating the mask: every row, or evenly spaced ones when that is too much.
double evaluatedPairs(const Problem &problem, const expr::Expr &mask, const std::vector<expr::TableData> &tables,
                      int64_t head, int64_t batch, bool &estimated) {
  int64_t rows = std::clamp<int64_t>(kExactPairs / std::max<int64_t>(problem.seqKV, 1), 1, problem.seqQ);
  estimated = rows < problem.seqQ;
  int64_t visible = 0;
  for (int64_t r = 0; r < rows; ++r) {
    expr::Point point{.q = r * problem.seqQ / rows, .sq = problem.seqQ, .sk = problem.seqKV, .h = head, .b = batch};
    for (point.k = 0; point.k < problem.seqKV; ++point.k) visible += expr::evaluateBool(mask, point, tables);
  }
  return static_cast<double>(visible) * static_cast<double>(problem.seqQ) / static_cast<double>(std::max<int64_t>(rows, 1));
}

} // namespace

Expected<TileMap> TileMap::make(const Problem &problem, int64_t tileQ, int64_t tileKV,
                                const std::vector<expr::TableData> &tables) {
  std::unique_ptr<MLIRContext> context = makeCompilerContext();
  Expected<OwningOpRef<ModuleOp>> module = buildClassified(*context, problem);
  if (!module) return propagate(module);
  TileCounter counter(problem, tileQ, tileKV, tables, module->get());

  expr::ExprPtr mask;
  bool varies = false; // with head or batch entry
  if (std::string text = problem.fullMask(); !text.empty()) {
    Expected<expr::ExprPtr> parsed = expr::parseMask(text, problem.tables);
    if (!parsed) return propagate(parsed);
    mask = *parsed;
    expr::walk(*mask, [&](const expr::Expr &e) {
      if (e.op == expr::Op::Variable) varies |= e.variable == expr::Variable::H || e.variable == expr::Variable::B;
      if (e.op == expr::Op::Table)
        for (TableAxis axis : problem.tables[e.table].axes) varies |= axis == TableAxis::H || axis == TableAxis::B;
    });
  }

  TileMap map;
  map.tilesQ = ceilDiv(problem.seqQ, tileQ);
  map.tilesKV = ceilDiv(problem.seqKV, tileKV);
  map.classes.assign(map.tilesQ * map.tilesKV, TileClass::Empty);
  int64_t slices = problem.headsQ * problem.batch;
  int64_t walked = varies ? slices : std::min<int64_t>(slices, 1), weight = varies ? 1 : slices;
  for (int64_t slice = 0; slice < walked; ++slice) {
    int64_t head = slice % problem.headsQ, batch = slice / problem.headsQ;
    TileCounts counts;
    counter.visitTiles(head, batch, [&](int64_t i, int64_t j, TileClass kind) {
      if (slice == 0) map.classes[i * map.tilesKV + j] = kind;
      (kind == TileClass::Full ? counts.full : counts.partial) += 1;
    });
    counts.empty = map.tilesQ * map.tilesKV - counts.full - counts.partial;
    map.counts.empty += weight * counts.empty;
    map.counts.full += weight * counts.full;
    map.counts.partial += weight * counts.partial;
    double pairs = counter.interval ? counter.intervalPairs(head, batch)
                                    : evaluatedPairs(problem, *mask, tables, head, batch, map.pairsEstimated);
    map.visiblePairs += static_cast<double>(weight) * pairs;
  }
  return map;
}

} // namespace tilewright
