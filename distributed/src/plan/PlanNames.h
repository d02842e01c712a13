// The spellings of plan enumerations: one table each, for printing and for reading JSON.
#pragma once

#include "tilewright/distributed/plan/StepPlan.h"
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright::dist {

inline constexpr std::array<std::string_view, kCategories> kCategoryNames = {
    "parameters", "gradients", "optimizer state", "activations", "communication"};
inline constexpr std::array<std::string_view, 14> kOpNames = {
    "forward", "accumulate", "backward",       "finish",     "convert",   "squared-norm", "scale",
    "adamw",   "all-reduce", "reduce-scatter", "all-gather", "broadcast", "send",         "receive"};
inline constexpr std::array<std::string_view, 3> kLaneNames = {"host", "compute", "communication"};
inline constexpr std::array<std::string_view, 3> kAccessNames = {"reads", "writes", "updates"};
inline constexpr std::array<std::string_view, 2> kPartNames = {"whole", "shard"};
inline constexpr std::array<std::string_view, 5> kTypeNames = {"float32", "float16", "bfloat16", "int32", "float64"};

template <size_t N, class Enum> std::string_view nameOf(const std::array<std::string_view, N> &names, Enum value) {
  return names[static_cast<size_t>(value)];
}

template <class Enum, size_t N>
Expected<Enum> parseName(const std::array<std::string_view, N> &names, std::string_view text) {
  for (size_t i = 0; i < N; ++i)
    if (names[i] == text) return static_cast<Enum>(i);
  return fail(Stage::Input, fmt::format("expected one of {}, found \"{}\"", fmt::join(names, ", "), text));
}

} // namespace tilewright::dist
