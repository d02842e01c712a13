#include "Visibility.h"
#include "../tensor/ParallelFor.h"
#include "tilewright/expr/Parser.h"
#include <algorithm>

namespace tilewright {
namespace {

constexpr int64_t kMaxBitTable = int64_t{512} << 20; // bytes

struct Dependence {
  bool onBatch = false, onHead = false;
};

Dependence dependenceOf(const expr::Expr &mask, const std::vector<TableSpec> &tables) {
  Dependence depends;
  expr::walk(mask, [&](const expr::Expr &node) {
    if (node.op == expr::Op::Variable) {
      depends.onBatch |= node.variable == expr::Variable::B;
      depends.onHead |= node.variable == expr::Variable::H;
    }
    if (node.op == expr::Op::Table)
      for (TableAxis axis : tables[static_cast<size_t>(node.table)].axes) {
        depends.onBatch |= axis == TableAxis::B;
        depends.onHead |= axis == TableAxis::H;
      }
  });
  return depends;
}

} // namespace

Expected<Visibility> Visibility::make(const Problem &problem, const std::vector<expr::TableData> &tables,
                                      std::span<const int64_t> rows, int threads) {
  Visibility visibility;
  visibility.problem = &problem;
  visibility.tables = &tables;
  visibility.rows = rows;
  const std::string text = problem.fullMask();
  if (text.empty()) return visibility;
  auto mask = expr::parseMask(text, problem.tables);
  if (!mask) return propagate(mask);
  visibility.mask = *mask;

  const Dependence depends = dependenceOf(**mask, problem.tables);
  visibility.batches = depends.onBatch ? problem.batch : 1;
  visibility.heads = depends.onHead ? problem.headsQ : 1;
  visibility.wordsPerRow = (problem.seqKV + 63) / 64;
  const int64_t count = static_cast<int64_t>(rows.size()), masks = visibility.batches * visibility.heads;
  const bool shared = masks < problem.batch * problem.headsQ || masks == 1;
  if (!shared || visibility.wordsPerRow == 0 || masks * count > kMaxBitTable / 8 / visibility.wordsPerRow)
    return visibility;
  std::vector<uint64_t> bits;
  try {
    bits.resize(static_cast<size_t>(masks * count * visibility.wordsPerRow));
  } catch (const std::bad_alloc &) {
    return visibility;
  }
  Status status = parallelFor(masks * count, threads, [&](int64_t i) {
    std::vector<uint8_t> visible(static_cast<size_t>(visibility.wordsPerRow * 64));
    const int64_t index = i % count, h = i / count % visibility.heads, b = i / count / visibility.heads;
    visibility.evaluate(b, h, index, visible.data());
    uint64_t *words = bits.data() + visibility.wordOffset(b, h, index);
    for (size_t k = 0; k < visible.size(); ++k)
      words[k / 64] |= static_cast<uint64_t>(visible[k]) << (k % 64);
  });
  if (!status) return propagate(status);
  visibility.bits = std::move(bits);
  return visibility;
}

int64_t Visibility::wordOffset(int64_t b, int64_t h, int64_t index) const {
  const int64_t mask = (batches > 1 ? b : 0) * heads + (heads > 1 ? h : 0);
  return (mask * static_cast<int64_t>(rows.size()) + index) * wordsPerRow;
}

void Visibility::evaluate(int64_t b, int64_t h, int64_t index, uint8_t *visible) const {
  expr::Point point;
  point.q = rows[static_cast<size_t>(index)];
  point.sq = problem->seqQ;
  point.sk = problem->seqKV;
  point.b = b;
  point.h = h;
  for (point.k = 0; point.k < problem->seqKV; ++point.k)
    visible[point.k] = expr::evaluateBool(*mask, point, *tables) ? 1 : 0;
}

KeyRange Visibility::row(int64_t b, int64_t h, int64_t index, uint8_t *visible) const {
  const int64_t keys = problem->seqKV;
  if (!mask) {
    std::fill_n(visible, keys, uint8_t{1});
    return {0, keys};
  }
  if (bits.empty()) {
    evaluate(b, h, index, visible);
  } else {
    const uint64_t *words = bits.data() + wordOffset(b, h, index);
    for (int64_t k = 0; k < keys; ++k)
      visible[k] = words[k / 64] >> (k % 64) & 1;
  }
  KeyRange range{0, keys};
  while (range.begin < range.end && !visible[range.begin])
    ++range.begin;
  while (range.end > range.begin && !visible[range.end - 1])
    --range.end;
  return range;
}

} // namespace tilewright
