// A problem's shorthands (causal, window, softcap) as expressions, so that the compiler knows masks and scores only.

#include "tilewright/expr/Parser.h"
#include "tilewright/plan/Problem.h"
#include <algorithm>
#include <fmt/format.h>
#include <tuple>

namespace tilewright {

namespace {

/// Conditions that are and-ed, in order, each once.
class Conjunction {
public:
  void add(std::string condition) {
    if (std::find(conditions.begin(), conditions.end(), condition) == conditions.end())
      conditions.push_back(std::move(condition));
  }
  std::string text() const {
    std::string text;
    for (const std::string &condition : conditions)
      text += (text.empty() ? "" : " && ") + condition;
    return text;
  }

private:
  std::vector<std::string> conditions;
};

void addConjuncts(const expr::Expr &mask, const std::vector<TableSpec> &tables, Conjunction &all) {
  if (mask.op == expr::Op::And) {
    addConjuncts(*mask.args[0], tables, all);
    addConjuncts(*mask.args[1], tables, all);
    return;
  }
  if (mask.op == expr::Op::Literal && mask.intValue) return;
  std::string text = expr::toString(mask, tables);
  all.add(mask.op == expr::Op::Or ? "(" + text + ")" : std::move(text));
}

/// A bound of kMaxSequence or more lets every key through: no q + sk - sq is further from a key than that.
bool cuts(int64_t bound) { return bound >= 0 && bound < kMaxSequence; }

} // namespace

Expected<std::vector<TableSpec>> tablesRead(const std::string &mask, const std::string &score) {
  std::vector<TableSpec> tables;
  for (const auto &[what, text] : {std::pair("mask", &mask), std::pair("score", &score)}) {
    if (text->empty()) continue;
    Expected<std::vector<TableSpec>> used = expr::tablesOf(*text, what);
    if (!used) return used;
    tables.insert(tables.end(), used->begin(), used->end());
  }
  auto key = [](const TableSpec &table) { return std::tie(table.name, table.axes); };
  std::sort(tables.begin(), tables.end(), [&](const TableSpec &a, const TableSpec &b) { return key(a) < key(b); });
  tables.erase(std::unique(tables.begin(), tables.end()), tables.end());
  return tables;
}

std::string Problem::fullMask() const {
  auto parsed = mask.empty() ? Expected<expr::ExprPtr>() : expr::parseMask(mask, tables);
  Conjunction all;
  int64_t right = !causal ? window.right : window.right < 0 ? 0 : std::min<int64_t>(window.right, 0);
  if (cuts(window.left))
    all.add(window.left == 0 ? "k >= q + sk - sq" : fmt::format("k >= q + sk - sq - {}", window.left));
  if (cuts(right)) all.add(right == 0 ? "k <= q + sk - sq" : fmt::format("k <= q + sk - sq + {}", right));
  if (!parsed) {
    all.add(all.text().empty() ? mask : "(" + mask + ")");
    return all.text();
  }
  if (!*parsed) return all.text();
  addConjuncts(**parsed, tables, all);
  // Once more through the parser: a single condition has lost its need for parentheses.
  auto combined = expr::parseMask(all.text(), tables);
  return combined ? expr::toString(**combined, tables) : all.text();
}

bool Problem::maskReadsHead() const {
  if (mask.empty()) return false;
  auto parsed = expr::parseMask(mask, tables);
  bool reads = !parsed;
  if (parsed)
    expr::walk(**parsed, [&](const expr::Expr &e) {
      reads |= e.op == expr::Op::Variable && e.variable == expr::Variable::H;
      reads |= std::find(e.axes.begin(), e.axes.end(), TableAxis::H) != e.axes.end();
    });
  return reads;
}

std::string Problem::fullScore() const {
  if (score.empty() && softcap == 0) return "";
  auto parsed = expr::parseScore(score.empty() ? "s" : score, tables);
  if (!parsed) return score;
  expr::ExprPtr tree = *parsed;
  if (softcap != 0) {
    auto cap = expr::parseScore(fmt::format("{0} * tanh(s / {0})", softcap), {});
    if (!cap) return score;
    tree = expr::substitute(tree, expr::Variable::S, *cap);
  }
  if (tree->op == expr::Op::Variable && tree->variable == expr::Variable::S) return "";
  return expr::toString(*tree, tables);
}

} // namespace tilewright
