// Which elements of which parameters' optimizer state a rank keeps, and which of them it saves: read off the plan's
// updates, whatever strategy built it.
#pragma once

#include "tilewright/distributed/plan/StepPlan.h"
#include <array>
#include <optional>

namespace tilewright::dist {

/// What AdamW keeps of each element. Master: the fp32 weights of 16-bit parameters.
enum class StateKind { FirstMoment, SecondMoment, Master };
constexpr std::array kStateKinds = {StateKind::FirstMoment, StateKind::SecondMoment, StateKind::Master};
std::string_view toString(StateKind kind); ///< "m", "v", "master"

/// Elements [begin, begin + count) of a parameter.
struct StateRange {
  int parameter = 0;
  int64_t begin = 0, count = 0;
  /// Where they lie on this rank, by kind; nothing if this plan keeps no such state.
  std::array<std::optional<Span>, kStateKinds.size()> at;
};

/// All that `rank` updates.
std::vector<StateRange> keptRanges(const StepPlan &plan, int rank);
/// The part that `rank` saves: every element of every parameter is saved by exactly one rank.
std::vector<StateRange> savedRanges(const StepPlan &plan, int rank);

/// "m/weight[0:128]": the tensor's name in a checkpoint's file.
std::string stateTensorName(StateKind kind, const std::string &parameter, int64_t begin, int64_t count);
struct StateTensorName {
  StateKind kind;
  std::string parameter;
  int64_t begin, count;
};
/// Nothing if it is no such name.
std::optional<StateTensorName> parseStateTensorName(std::string_view name);

} // namespace tilewright::dist
