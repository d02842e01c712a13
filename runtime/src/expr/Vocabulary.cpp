#include "Vocabulary.h"
#include <algorithm>

namespace tilewright::expr {

namespace {

constexpr std::pair<std::string_view, Variable> kVariables[] = {
    {"q", Variable::Q}, {"k", Variable::K}, {"sq", Variable::SQ}, {"sk", Variable::SK},
    {"h", Variable::H}, {"b", Variable::B}, {"s", Variable::S},
};

constexpr std::pair<std::string_view, Function> kFunctions[] = {
    {"where", {Op::Where, 3}}, {"min", {Op::Min, 2}}, {"max", {Op::Max, 2}},   {"abs", {Op::Abs, 1}},
    {"exp", {Op::Exp, 1}},     {"log", {Op::Log, 1}}, {"tanh", {Op::Tanh, 1}},
};

constexpr std::pair<std::string_view, TableAxis> kAxes[] = {
    {"q", TableAxis::Q}, {"k", TableAxis::K}, {"h", TableAxis::H}, {"b", TableAxis::B}};

template <class Entry, size_t N> auto find(const Entry (&entries)[N], std::string_view name) {
  using Value = decltype(Entry::second);
  for (const Entry &entry : entries)
    if (entry.first == name) return std::optional<Value>(entry.second);
  return std::optional<Value>();
}

bool isLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

} // namespace

std::optional<Variable> variableNamed(std::string_view name) { return find(kVariables, name); }
std::optional<Function> functionNamed(std::string_view name) { return find(kFunctions, name); }
std::optional<TableAxis> axisNamed(std::string_view name) { return find(kAxes, name); }

std::string_view nameOf(Variable variable) { return kVariables[static_cast<int>(variable)].first; }
std::string_view nameOf(TableAxis axis) { return kAxes[static_cast<int>(axis)].first; }

bool isReserved(std::string_view name) {
  return variableNamed(name) || functionNamed(name) || name == "and" || name == "or" || name == "not" ||
         name == "true" || name == "false";
}

bool isTableName(std::string_view name) {
  return !name.empty() && isLetter(name[0]) && !isReserved(name) &&
         std::all_of(name.begin(), name.end(), [](char c) { return isLetter(c) || (c >= '0' && c <= '9'); });
}

bool areValidAxes(const std::vector<TableAxis> &axes) {
  if (axes.size() == 1) return true;
  return axes.size() == 2 && axes[0] == TableAxis::B && axes[1] != TableAxis::B;
}

std::string axesText(const std::vector<TableAxis> &axes) {
  std::string text = "[";
  for (size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) text += ", ";
    text += nameOf(axes[i]);
  }
  return text + "]";
}

std::string variableNames(bool withS) { return withS ? "q k sq sk h b s" : "q k sq sk h b"; }

std::string functionNames() {
  std::string text;
  for (const auto &[name, function] : kFunctions) {
    if (!text.empty()) text += ' ';
    text += name;
  }
  return text;
}

} // namespace tilewright::expr
