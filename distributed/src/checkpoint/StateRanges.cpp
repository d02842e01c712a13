#include "StateRanges.h"
#include "tilewright/distributed/plan/PlanCost.h"
#include <algorithm>
#include <charconv>
#include <fmt/format.h>

namespace tilewright::dist {
namespace {

constexpr std::array<std::string_view, kStateKinds.size()> kNames = {"m", "v", "master"};
/// An update's uses: gradients, scale, parameters, m, v, and perhaps master.
constexpr size_t kParameterUse = 2, kFirstStateUse = 3;

std::vector<StateRange> rangesOf(const StepPlan &plan, int rank, bool saved) {
  std::vector<StateRange> ranges;
  for (const StepOp &op : plan.ops) {
    if (op.kind != OpKind::AdamW || (op.rank >= 0 && op.rank != rank)) continue;
    const Span &arena = op.uses[kParameterUse].span;
    const Span own = partOf(arena, plan.worldSize, rank);
    // What all ranks keep, each saves a part of.
    const bool shared = op.rank < 0 && arena.part == Part::Whole;
    const Chunk chunk = saved && shared ? chunkOf(own.count, plan.worldSize, rank) : Chunk{0, own.count};
    for (size_t p = 0; p < plan.parameters.size(); ++p) {
      const PlanParameter &parameter = plan.parameters[p];
      const int64_t begin = std::max(own.begin + chunk.begin, parameter.begin),
                    end = std::min(own.begin + chunk.begin + chunk.count, parameter.begin + parameter.elements());
      if (begin >= end) continue;
      StateRange range{static_cast<int>(p), begin - parameter.begin, end - begin, {}};
      for (size_t kind = 0; kind < kStateKinds.size() && kFirstStateUse + kind < op.uses.size(); ++kind) {
        const Span state = partOf(op.uses[kFirstStateUse + kind].span, plan.worldSize, rank);
        range.at[kind] = Span{state.buffer, state.begin + begin - own.begin, end - begin, Part::Whole};
      }
      ranges.push_back(range);
    }
  }
  return ranges;
}

} // namespace

std::string_view toString(StateKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::vector<StateRange> keptRanges(const StepPlan &plan, int rank) { return rangesOf(plan, rank, false); }
std::vector<StateRange> savedRanges(const StepPlan &plan, int rank) { return rangesOf(plan, rank, true); }

std::string stateTensorName(StateKind kind, const std::string &parameter, int64_t begin, int64_t count) {
  return fmt::format("{}/{}[{}:{}]", toString(kind), parameter, begin, begin + count);
}

std::optional<StateTensorName> parseStateTensorName(std::string_view name) {
  const size_t slash = name.find('/'), bracket = name.rfind('['), colon = name.rfind(':');
  if (slash == name.npos || bracket == name.npos || bracket < slash || colon == name.npos || colon < bracket ||
      !name.ends_with(']'))
    return std::nullopt;
  const auto kind = std::ranges::find(kNames, name.substr(0, slash));
  if (kind == kNames.end()) return std::nullopt;
  auto number = [&](size_t from, size_t to) {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(name.data() + from, name.data() + to, value);
    return error == std::errc() && end == name.data() + to ? value : -1;
  };
  const int64_t begin = number(bracket + 1, colon), end = number(colon + 1, name.size() - 1);
  if (begin < 0 || end < begin) return std::nullopt;
  return StateTensorName{static_cast<StateKind>(kind - kNames.begin()),
                         std::string(name.substr(slash + 1, bracket - slash - 1)), begin, end - begin};
}

} // namespace tilewright::dist
