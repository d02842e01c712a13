#include "tilewright/reference/Attention.h"
#include "StandardAttention.h"
#include "tilewright/tensor/Random.h"
#include <algorithm>
#include <fmt/format.h>
#include <numeric>

namespace tilewright {
namespace {

struct DoubleArithmetic {
  using Real = double;
  static constexpr ElementType kResultType = ElementType::F64;
  static constexpr bool kEstimatesNoise = true;
  void roundMatrix(double *, int64_t) const {}
  void roundOperand(double *, int64_t) const {}
  void roundResult(double *, int64_t) const {}
};

} // namespace

Status checkAttentionInputs(const Problem &problem, const AttentionInputs &inputs, const AttentionOptions &options) {
  if (problem.headsKV < 1 || problem.headsQ % problem.headsKV != 0)
    return fail(Stage::Verify, fmt::format("reference: {} query heads do not divide into groups over {} kv heads",
                                           problem.headsQ, problem.headsKV));
  struct Part {
    const TensorView &view;
    TensorShape shape;
    bool wanted;
    const char *name;
  };
  const Part parts[] = {{inputs.q, shapeOfQ(problem), true, "q"},
                        {inputs.k, shapeOfK(problem), true, "k"},
                        {inputs.v, shapeOfV(problem), true, "v"},
                        {inputs.dO, shapeOfO(problem), problem.direction == Direction::Backward, "dO"}};
  for (const Part &part : parts) {
    if (!part.wanted) continue;
    if (!part.view.valid()) return fail(Stage::Verify, fmt::format("reference: {} is missing", part.name));
    if (part.view.shape() != part.shape)
      return fail(Stage::Verify, fmt::format("reference: {}: expected shape {}, found {}", part.name,
                                             part.shape.text(problem.layout), part.view.shape().text(problem.layout)));
  }
  if (inputs.tables.size() != problem.tables.size())
    return fail(Stage::Verify, fmt::format("reference: the problem reads {} tables, found {}", problem.tables.size(),
                                           inputs.tables.size()));
  for (size_t i = 0; i < inputs.tables.size(); ++i)
    if (problem.tables[i].isFloat ? !inputs.tables[i].floats : !inputs.tables[i].ints)
      return fail(Stage::Verify, fmt::format("reference: table {}: expected {} elements", problem.tables[i].name,
                                             problem.tables[i].isFloat ? "float32" : "int32"));
  for (size_t i = 0; i < options.rows.size(); ++i)
    if (options.rows[i] < (i ? options.rows[i - 1] + 1 : 0) || options.rows[i] >= problem.seqQ)
      return fail(Stage::Verify, fmt::format("reference: rows: expected ascending numbers from 0 to {}, found {}",
                                             problem.seqQ - 1, options.rows[i]));
  return {};
}

Expected<AttentionResult> referenceAttention(const Problem &problem, const AttentionInputs &inputs,
                                             const AttentionOptions &options) {
  return StandardAttention<DoubleArithmetic>::compute(problem, inputs, options, {});
}

std::vector<int64_t> sampleRows(int64_t sequence, int64_t count, uint64_t seed) {
  std::vector<int64_t> rows;
  if (count >= sequence) {
    rows.resize(static_cast<size_t>(std::max<int64_t>(sequence, 0)));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  }
  // One row of each of `count` equal parts, the outermost pinned to the ends.
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = sequence * i / count, last = sequence * (i + 1) / count;
    const uint64_t offset = randomBits(seed, 0, static_cast<uint64_t>(i)) % static_cast<uint64_t>(last - first);
    rows.push_back(i == 0 ? 0 : i == count - 1 ? sequence - 1 : first + static_cast<int64_t>(offset));
  }
  return rows;
}

} // namespace tilewright
