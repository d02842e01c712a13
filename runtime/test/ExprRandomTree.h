// Random well-typed expressions for property tests: text is written first and parsed, so that every tree is one that
// the parser makes.
#pragma once

#include "tilewright/expr/Parser.h"
#include <fmt/format.h>
#include <random>
#include <string>

namespace tilewright::expr {

inline const std::vector<TableSpec> kRandomTables = {{"f", true, {TableAxis::B, TableAxis::K}},
                                                     {"t", false, {TableAxis::Q}},
                                                     {"t", false, {TableAxis::K}},
                                                     {"u", false, {TableAxis::H}}};

class RandomText {
public:
  explicit RandomText(uint64_t seed) : engine(seed) {}

  std::string boolean(int depth) {
    if (depth <= 0) return pick({"k <= q", "t[q] == t[k]", "true", "false", "k < sk - 3"});
    switch (below(7)) {
    case 0:
      return fmt::format("({}) && ({})", boolean(depth - 1), boolean(depth - 1));
    case 1:
      return fmt::format("({}) or ({})", boolean(depth - 1), boolean(depth - 1));
    case 2:
      return fmt::format("!({})", boolean(depth - 1));
    case 3:
      return fmt::format("where({},{},{})", boolean(depth - 1), boolean(depth - 1), boolean(depth - 1));
    case 4:
      return fmt::format("not {} and {}", boolean(0), boolean(depth - 1));
    default:
      return fmt::format("{}{}{}", number(depth - 1), pick({"<", "<=", ">", ">=", "==", "!="}), number(depth - 1));
    }
  }

  std::string number(int depth) { return below(2) ? integer(depth) : real(depth); }

  std::string integer(int depth) {
    if (depth <= 0)
      return below(4) ? pick({"q", "k", "sq", "sk", "h", "b", "t[q]", "t[k]", "u[h]"}) : std::to_string(below(2000));
    std::string a = integer(depth - 1), b = integer(depth - 1);
    switch (below(10)) {
    case 0:
      return fmt::format("-({})", a);
    case 1:
      return fmt::format("abs({})", a);
    case 2:
      return fmt::format("min({},{})", a, b);
    case 3:
      return fmt::format("max({},{})", a, b);
    case 4:
      return fmt::format("where({},{},{})", boolean(depth - 1), a, b);
    case 5:
      return fmt::format("({})//{}", a, 1 + below(100));
    case 6:
      return fmt::format("({})%{}", a, 1 + below(100));
    case 7:
      return fmt::format("({})*({})", a, b);
    case 8:
      return fmt::format("({})-({})", a, b);
    default:
      return fmt::format("({})+({})", a, b);
    }
  }

  std::string real(int depth) {
    if (depth <= 0) return pick({"s", "f[b, k]", "0.1", "2.5e-7", "1e30", "7.0", "-0.0"});
    std::string a = number(depth - 1), b = real(depth - 1);
    switch (below(9)) {
    case 0:
      return fmt::format("-({})", b);
    case 1:
      return fmt::format("{}({})", pick({"abs", "exp", "log", "tanh"}), a);
    case 2:
      return fmt::format("min({},{})", a, b);
    case 3:
      return fmt::format("where({},{},{})", boolean(depth - 1), a, b);
    case 4:
      return fmt::format("({})/(1.5 + ({}))", a, b);
    case 5:
      return fmt::format("({})//({})", a, b);
    case 6:
      return fmt::format("({})%({})", a, b);
    case 7:
      return fmt::format("({})*({})", a, b);
    default:
      return fmt::format("({})-({})", a, b);
    }
  }

  int64_t below(int64_t bound) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(bound)); }

private:
  std::string pick(std::initializer_list<const char *> choices) { return choices.begin()[below(choices.size())]; }

  std::mt19937_64 engine;
};

} // namespace tilewright::expr
