#include "tilewright/plan/Problem.h"
#include "../expr/Vocabulary.h"
#include "tilewright/KernelArgs.h"
#include "tilewright/expr/Evaluator.h"
#include "tilewright/expr/Parser.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <set>
#include <tuple>

namespace tilewright {

namespace {

Status checkRange(std::string_view field, int64_t value, int64_t low, int64_t high, std::string hint = {}) {
  if (value >= low && value <= high) return {};
  return fail(Stage::Input, fmt::format("{}: expected {} to {}, found {}", field, low, high, value), std::move(hint));
}

Status checkHeads(const Problem &p) {
  std::string both = fmt::format("{} query heads and {} kv heads", p.headsQ, p.headsKV);
  for (int64_t heads : {p.headsQ, p.headsKV})
    if (heads < 1 || heads > kMaxHeads)
      return fail(Stage::Input, fmt::format("heads: expected 1 to {} on each side, found {}", kMaxHeads, both));
  if (p.headsQ % p.headsKV != 0)
    return fail(Stage::Input,
                fmt::format("heads: {} are not groups of equal size: {} % {} = {}, expected 0", both, p.headsQ,
                            p.headsKV, p.headsQ % p.headsKV),
                "the number of query heads must be a multiple of the number of kv heads");
  return {};
}

/// Every tensor's byte count must fit int64: strides and offsets are computed in it.
Status checkSizes(const Problem &p) {
  struct Tensor {
    const char *name;
    int64_t heads, sequence, dim;
  };
  for (const Tensor &tensor : {Tensor{"q", p.headsQ, p.seqQ, p.dimQK}, Tensor{"o", p.headsQ, p.seqQ, p.dimV},
                               Tensor{"k", p.headsKV, p.seqKV, p.dimQK}, Tensor{"v", p.headsKV, p.seqKV, p.dimV}}) {
    // LSE is fp32 whatever the dtype, so 4 bytes an element bounds all of them.
    int64_t bytes = 4;
    bool overflow = false;
    for (int64_t factor : {p.batch, tensor.heads, tensor.sequence, tensor.dim})
      overflow |= __builtin_mul_overflow(bytes, factor, &bytes);
    if (overflow)
      return fail(Stage::Input, fmt::format("size of {}: {} x {} x {} x {} elements exceed 64-bit byte offsets",
                                            tensor.name, p.batch, tensor.heads, tensor.sequence, tensor.dim));
  }
  return {};
}

Status checkWindow(const Window &window) {
  for (auto [side, bound] : {std::pair{"left", window.left}, std::pair{"right", window.right}})
    if (bound < -1)
      return fail(Stage::Input,
                  fmt::format("window: the {} bound must be 0 or more, or -1 for unbounded; found {}", side, bound));
  return {};
}

Status checkFactors(const Problem &p) {
  constexpr double kLargest = std::numeric_limits<float>::max(), kSmallest = std::numeric_limits<float>::min();
  if (!std::isfinite(p.softcap) || p.softcap < 0 || p.softcap > kLargest || (p.softcap > 0 && p.softcap < kSmallest))
    return fail(Stage::Input,
                fmt::format("softcap: expected 0 (none) or {} to {}, found {}", kSmallest, kLargest, p.softcap));
  if (p.scale && !(std::abs(*p.scale) <= kLargest))
    return fail(Stage::Input, fmt::format("scale: expected a finite number within fp32, found {}", *p.scale));
  return {};
}

Status checkTables(const std::vector<TableSpec> &tables) {
  if (tables.size() > static_cast<size_t>(kMaxTables))
    return fail(Stage::Input,
                fmt::format("tables: {} readings of tables; a kernel takes at most {}", tables.size(), kMaxTables),
                "each way of subscripting a table counts: doc[q] and doc[k] are two");
  for (size_t i = 0; i < tables.size(); ++i) {
    const TableSpec &table = tables[i];
    if (!expr::isTableName(table.name))
      return fail(Stage::Input, fmt::format("tables: \"{}\" cannot name a table", table.name),
                  "a name is a letter or _, then letters, digits and _; names of variables and functions are taken");
    if (!expr::areValidAxes(table.axes))
      return fail(Stage::Input, fmt::format("tables: {}{} cannot be read", table.name, expr::axesText(table.axes)),
                  "a table is read by one of q, k, h, b, or by b and then one of q, k, h");
    if (i == 0) continue;
    const TableSpec &before = tables[i - 1];
    if (std::tie(before.name, before.axes) >= std::tie(table.name, table.axes))
      return fail(Stage::Input,
                  fmt::format("tables: {}{} is listed after {}{}; expected them sorted by name and then "
                              "axes (q, k, h, b), each once",
                              table.name, expr::axesText(table.axes), before.name, expr::axesText(before.axes)));
    if (before.name == table.name && before.isFloat != table.isFloat)
      return fail(Stage::Input, fmt::format("tables: {} is both int32 and float32", table.name));
  }
  return {};
}

/// Parses, and refuses integers that could leave 64 bits. Marks the tables that are read.
Status checkExpression(bool isMask, const std::string &text, const std::vector<TableSpec> &tables,
                       std::set<int> &read) {
  auto parsed = isMask ? expr::parseMask(text, tables) : expr::parseScore(text, tables);
  if (!parsed) return propagate(parsed);
  if (const expr::Expr *node = expr::overflowingNode(**parsed))
    return fail(
        Stage::Input,
        fmt::format("{}: {} could leave 64-bit integers", isMask ? "mask" : "score", expr::toString(*node, tables)),
        "positions and lengths reach 2^28 and tables hold any int32: make one factor a float, e.g. 1.0 * q * k");
  expr::walk(**parsed, [&](const expr::Expr &node) {
    if (node.op == expr::Op::Table) read.insert(node.table);
  });
  return {};
}

Status checkExpressions(const Problem &p) {
  std::set<int> read;
  if (!p.mask.empty())
    if (Status status = checkExpression(true, p.mask, p.tables, read); !status) return status;
  if (!p.score.empty())
    if (Status status = checkExpression(false, p.score, p.tables, read); !status) return status;
  for (size_t i = 0; i < p.tables.size(); ++i)
    if (!read.contains(static_cast<int>(i)))
      return fail(Stage::Input, fmt::format("tables: neither mask nor score reads {}{}", p.tables[i].name,
                                            expr::axesText(p.tables[i].axes)));
  // The combined texts are what kernels are built from; putting in softcap or window may pass the parser's limits.
  std::string mask = p.fullMask(), score = p.fullScore();
  for (auto [text, isMask] : {std::pair{&mask, true}, std::pair{&score, false}})
    if (!text->empty())
      if (Status status = checkExpression(isMask, *text, p.tables, read); !status) {
        status.error().hint = isMask ? "this is the mask with causal and window put in; a shorter mask helps"
                                     : "this is the score with softcap put in; a shorter score helps";
        return status;
      }
  return {};
}

} // namespace

double Problem::effectiveScale() const { return scale ? *scale : 1 / std::sqrt(static_cast<double>(dimQK)); }

Status Problem::validate() const {
  if (Status status = checkRange("batch", batch, 0, kMaxBatch); !status) return status;
  if (Status status = checkHeads(*this); !status) return status;
  for (auto [name, length] : {std::pair{"seq_q", seqQ}, std::pair{"seq_kv", seqKV}})
    if (Status status = checkRange(name, length, 0, kMaxSequence); !status) return status;
  for (auto [name, dim] : {std::pair{"dim_qk", dimQK}, std::pair{"dim_v", dimV}})
    if (Status status = checkRange(name, dim, 1, kMaxHeadDim); !status) return status;
  if (Status status = checkSizes(*this); !status) return status;
  if (Status status = checkWindow(window); !status) return status;
  if (Status status = checkFactors(*this); !status) return status;
  if (Status status = checkTables(tables); !status) return status;
  return checkExpressions(*this);
}

std::string Problem::constantsText() const {
  std::string text = fmt::format("dim_qk={}\ndim_v={}\ndtype={}\ngroup={}\nmask={}\nscore={}\ntables=", dimQK, dimV,
                                 toString(dtype), groupSize(), fullMask(), fullScore());
  for (size_t i = 0; i < tables.size(); ++i)
    text += fmt::format("{}{}{}:{}", i > 0 ? "; " : "", tables[i].name, expr::axesText(tables[i].axes),
                        tables[i].isFloat ? "float32" : "int32");
  return text + "\n";
}

double attentionFlops(const Problem &problem, double visiblePairs) {
  double forward = 4.0 * static_cast<double>(problem.batch) * static_cast<double>(problem.headsQ) * visiblePairs *
                   static_cast<double>(problem.dimQK + problem.dimV) / 2;
  return problem.direction == Direction::Forward ? forward : 2.5 * forward;
}

} // namespace tilewright
