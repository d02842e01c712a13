#include "tilewright/distributed/plan/Strategy.h"
#include "PlanBuilder.h"
#include "PlanNames.h"
#include "tilewright/distributed/plan/PlanCheck.h"

namespace tilewright::dist {
namespace {

constexpr std::array<std::string_view, 6> kStrategyNames = {"naive",           "flat", "overlap", "bucketed",
                                                            "zero1-broadcast", "zero1"};

Status checkOptions(const StrategyOptions &options) {
  auto isFloat = [](ElementType type) { return type == ElementType::F32 || type == ElementType::BF16; };
  constexpr int kMostRanks = 1 << 16;
  if (options.worldSize < 1 || options.worldSize > kMostRanks)
    return fail(Stage::Plan, fmt::format("world size: expected 1 to {}, found {}", kMostRanks, options.worldSize));
  if (options.accumulation < 1)
    return fail(Stage::Plan, fmt::format("accumulation: expected at least 1, found {}", options.accumulation));
  if (options.bucketBytes < 1)
    return fail(Stage::Plan, fmt::format("bucket size: expected at least 1 byte, found {}", options.bucketBytes));
  if (options.hostSums < 0)
    return fail(Stage::Plan, fmt::format("host sums: expected at least 0, found {}", options.hostSums));
  if (options.activationBytes < 0)
    return fail(Stage::Plan, fmt::format("activation bytes: expected at least 0, found {}", options.activationBytes));
  for (auto [what, type] :
       {std::pair{"parameters", options.parameterType}, std::pair{"gradients", options.gradientType},
        std::pair{"reduction", options.reductionType}})
    if (!isFloat(type))
      return fail(Stage::Plan, fmt::format("{}: expected float32 or bfloat16, found {}", what, toString(type)));
  return {};
}

} // namespace

std::string_view toString(Strategy strategy) { return nameOf(kStrategyNames, strategy); }

Expected<Strategy> parseStrategy(std::string_view text) {
  Expected<Strategy> strategy = parseName<Strategy>(kStrategyNames, text);
  if (!strategy) strategy.error().message = "strategy: " + strategy.error().message;
  return strategy;
}

std::vector<Strategy> allStrategies() {
  return {Strategy::Naive,    Strategy::Flat,           Strategy::Overlap,
          Strategy::Bucketed, Strategy::Zero1Broadcast, Strategy::Zero1};
}

Expected<StepPlan> buildPlan(const ParameterList &parameters, const StrategyOptions &options) {
  if (Status status = checkOptions(options); !status) return propagate(status);
  Expected<ArenaLayout> layout = ArenaLayout::make(parameters, options);
  if (!layout) return propagate(layout);
  StepPlan plan = PlanBuilder(std::move(*layout), options).build();
  if (Status status = checkPlan(plan); !status) return propagate(status);
  return plan;
}

} // namespace tilewright::dist
