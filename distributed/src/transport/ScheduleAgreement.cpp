#include "tilewright/distributed/transport/ScheduleAgreement.h"
#include "tilewright/distributed/transport/RankAgreement.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::dist {
namespace {

std::string textOf(const std::vector<PlanChoice> &choices) {
  nlohmann::json list = nlohmann::json::array();
  for (const PlanChoice &choice : choices)
    list.push_back({{"plan", choice.plan}, {"origin", static_cast<int>(choice.origin)}, {"from", choice.from}});
  return list.dump();
}

Expected<std::vector<PlanChoice>> choicesOf(const std::string &text, const Target &target) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array()) return fail(Stage::Communicate, "rank 0 sent no schedules: is it another version?");
  std::vector<PlanChoice> choices;
  try {
    for (const nlohmann::json &entry : list) {
      Expected<KernelPlan> plan = kernelPlanFromJson(entry.at("plan"));
      if (!plan) return propagate(plan);
      plan->target = target;
      if (Status status = plan->validate(); !status) return propagate(status);
      choices.push_back({std::move(*plan), static_cast<ScheduleOrigin>(entry.at("origin").get<int>()),
                         entry.at("from").get<std::string>()});
    }
  } catch (const nlohmann::json::exception &error) {
    return fail(Stage::Communicate, fmt::format("rank 0 sent no schedules: {}", error.what()));
  }
  return choices;
}

} // namespace

Expected<std::vector<PlanChoice>> chooseTogether(Transport &transport, const Target &target,
                                                 const std::function<Expected<std::vector<PlanChoice>>()> &choose) {
  Expected<std::vector<PlanChoice>> own = std::vector<PlanChoice>();
  if (transport.rank() == 0) own = choose();
  if (Status status = agree(transport, own ? Status() : Status(propagate(own))); !status) return propagate(status);
  Expected<std::vector<std::string>> all = transport.exchange(transport.rank() == 0 ? textOf(*own) : "");
  if (!all) return propagate(all);
  Expected<std::vector<PlanChoice>> choices = choicesOf(all->front(), target);
  if (Status status = agree(transport, choices ? Status() : Status(propagate(choices))); !status)
    return propagate(status);
  return choices;
}

} // namespace tilewright::dist
