#include "ArenaLayout.h"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace tilewright::dist {
namespace {

int64_t roundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

Status checkParameters(const ParameterList &parameters) {
  if (parameters.empty()) return fail(Stage::Plan, "no parameters: expected at least one");
  std::set<std::string_view> names;
  int64_t total = 0;
  for (const ParameterSpec &p : parameters) {
    if (p.name.empty()) return fail(Stage::Plan, "a parameter has no name");
    if (p.name.find_first_of("\n\r") != std::string::npos)
      return fail(Stage::Plan, fmt::format("parameter '{}': its name has a line break", p.name));
    if (!names.insert(p.name).second) return fail(Stage::Plan, fmt::format("two parameters are called '{}'", p.name));
    int64_t elements = 1;
    for (int64_t extent : p.shape)
      if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements))
        return fail(Stage::Plan,
                    fmt::format("parameter {}: shape ({}) is negative or too large", p.name, fmt::join(p.shape, ", ")));
    if (elements > (int64_t{1} << 56) || (total += elements) > (int64_t{1} << 56))
      return fail(Stage::Plan, fmt::format("parameter {}: more than 2^56 elements in all", p.name));
    if (!(p.weightDecay >= 0))
      return fail(Stage::Plan,
                  fmt::format("parameter {}: weight decay must not be negative, found {}", p.name, p.weightDecay));
  }
  return {};
}

} // namespace

Expected<ArenaLayout> ArenaLayout::make(const ParameterList &parameters, const StrategyOptions &options) {
  if (Status status = checkParameters(parameters); !status) return propagate(status);
  ArenaLayout layout;
  layout.parameters.resize(parameters.size());
  const int64_t cap = std::max<int64_t>(options.bucketBytes / sizeInBytes(options.reductionType), 1);
  Bucket bucket;
  auto close = [&] {
    bucket.count = roundUp(layout.elements, options.worldSize * kParameterAlignment) - bucket.begin;
    layout.elements = bucket.begin + bucket.count;
    layout.buckets.push_back(std::move(bucket));
    bucket = {layout.elements, 0, {}};
  };
  for (int i = static_cast<int>(parameters.size()) - 1; i >= 0; --i) {
    const ParameterSpec &spec = parameters[static_cast<size_t>(i)];
    PlanParameter placed{spec.name, spec.shape, spec.weightDecay, 0};
    const int64_t elements = placed.elements();
    if (!bucket.parameters.empty() && layout.elements + elements - bucket.begin > cap) close();
    placed.begin = layout.elements;
    layout.elements = roundUp(layout.elements + elements, kParameterAlignment);
    bucket.parameters.push_back(i);
    layout.parameters[static_cast<size_t>(i)] = std::move(placed);
  }
  close();
  return layout;
}

} // namespace tilewright::dist
