// Which keys each query row sees, by the plain evaluator. Where the mask's table of bits fits, each pair is evaluated
// once for all the heads and batch entries that share it.
#pragma once

#include "tilewright/expr/Evaluator.h"
#include <span>
#include <vector>

namespace tilewright {

/// Keys [begin, end) hold every visible one.
struct KeyRange {
  int64_t begin = 0, end = 0;
};

class Visibility {
public:
  /// `rows` are the query rows asked for. The problem and the tables must outlive the object.
  static Expected<Visibility> make(const Problem &problem, const std::vector<expr::TableData> &tables,
                                   std::span<const int64_t> rows, int threads);

  /// Sets visible[k] to 1 or 0 for every key of the range it returns, for row number `index` of the rows. Thread-safe.
  KeyRange row(int64_t b, int64_t h, int64_t index, uint8_t *visible) const;

private:
  void evaluate(int64_t b, int64_t h, int64_t index, uint8_t *visible) const;
  int64_t wordOffset(int64_t b, int64_t h, int64_t index) const;

  const Problem *problem = nullptr;
  const std::vector<expr::TableData> *tables = nullptr;
  std::span<const int64_t> rows;
  expr::ExprPtr mask; ///< Null: every key is visible.
  int64_t batches = 1, heads = 1, wordsPerRow = 0;
  std::vector<uint64_t> bits; ///< (batches, heads, rows, words); empty when it would be too large.
};

} // namespace tilewright
