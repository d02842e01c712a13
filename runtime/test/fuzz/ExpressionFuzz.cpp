// libFuzzer target: any bytes as a mask and as a score. What parses must print, read back to the same text, evaluate
// within its range, and be a valid or refused problem; nothing may crash.

#include "tilewright/expr/Evaluator.h"
#include "tilewright/expr/Parser.h"
#include <cmath>
#include <cstdlib>

using namespace tilewright;
using namespace tilewright::expr;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const std::vector<TableSpec> kTables = {{"f", true, {TableAxis::B, TableAxis::K}},
                                        {"t", false, {TableAxis::Q}},
                                        {"t", false, {TableAxis::K}},
                                        {"u", false, {TableAxis::H}}};

void checkTree(const Expr &tree, bool isMask) {
  std::string canonical = toString(tree, kTables);
  auto again = isMask ? parseMask(canonical, kTables) : parseScore(canonical, kTables);
  // Canonical spacing and the parentheses after ! may pass the parser's limits, and then it says so.
  if (again)
    require(toString(**again, kTables) == canonical);
  else
    require(canonical.size() > 4096 || again.error().message.find("nested deeper") != std::string::npos);

  const int32_t ints[] = {INT32_MIN, 7, INT32_MAX};
  const float floats[] = {0, -1.5f, 3e38f, 1, 2, 3, 4, 5, 6};
  const std::vector<TableData> data = {
      {nullptr, floats, 3}, {ints, nullptr, 3}, {ints, nullptr, 3}, {ints, nullptr, 3}};
  bool mayOverflow = overflowingNode(tree) != nullptr;
  for (const Point &point : {Point{}, Point{.q = 2, .k = 1, .sq = kMaxSequence, .sk = 3, .h = 2, .b = 1, .s = -1.25}})
    walk(tree, [&](const Expr &node) {
      // Every node at every point would be quadratic; leaves and the root say enough.
      if (!node.args.empty() && &node != &tree) return;
      double value = evaluateWithDerivative(node, point, data).value;
      auto range = rangeOf(node);
      if (node.type == Type::Int && !mayOverflow)
        require(range && value >= static_cast<double>(range->low) && value <= static_cast<double>(range->high));
    });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  std::string text(reinterpret_cast<const char *>(bytes), size);
  for (bool isMask : {true, false}) {
    auto tree = isMask ? parseMask(text, kTables) : parseScore(text, kTables);
    if (tree)
      checkTree(**tree, isMask);
    else
      require(!tree.error().message.empty() && tree.error().text().size() < 1000);
  }
  if (auto tables = tablesOf(text)) {
    Problem problem;
    problem.causal = size % 2;
    problem.mask = text;
    problem.tables = *tables;
    if (problem.validate()) {
      Problem canonical = problem;
      canonical.mask = problem.fullMask();
      canonical.causal = false;
      require(canonical.fullMask() == problem.fullMask());
    }
  }
  return 0;
}
