#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/distributed/transport/ScheduleAgreement.h"
#include "RankProcesses.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::dist;
using Say = std::function<void(const std::string &)>;

namespace {

Problem sampleProblem() {
  Problem problem;
  problem.seqQ = problem.seqKV = 300;
  problem.dtype = DType::F32;
  problem.causal = true;
  problem.direction = Direction::Backward;
  return problem;
}

/// What a rank would choose alone: tiles that tell the ranks apart.
Expected<std::vector<PlanChoice>> choiceOf(int rank) {
  auto plans = choosePlans(sampleProblem(), Target::hostCpu());
  if (!plans) return plans;
  for (PlanChoice &choice : *plans) {
    choice.plan.schedule.tileKV = 16 * (rank + 1);
    choice.origin = ScheduleOrigin::Nearest;
    choice.from = "rank " + std::to_string(rank);
  }
  return plans;
}

RankProcesses ranks(const std::function<int(Transport &, const Say &)> &body) {
  return RankProcesses(3, [&](const JobEnvironment &job, const Say &say) {
    auto transport = connectGloo(job);
    if (!transport) return say(transport.error().text()), 2;
    return body(**transport, say);
  });
}

} // namespace

TEST_CASE("every rank gets rank 0's choice, whatever it would choose itself") {
  auto processes = ranks([](Transport &transport, const Say &say) {
    Target target = Target::hostCpu();
    target.threads = 5 + transport.rank();
    auto chosen = chooseTogether(transport, target, [&] { return choiceOf(transport.rank()); });
    if (!chosen) return say(chosen.error().text()), 1;
    auto first = choiceOf(0);
    if (chosen->size() != first->size() || chosen->size() != 4) return say("another number of plans"), 1;
    for (size_t i = 0; i < chosen->size(); ++i) {
      const PlanChoice &own = (*chosen)[i], &other = (*first)[i];
      if (own.plan.schedule != other.plan.schedule || own.plan.role != other.plan.role ||
          own.plan.problem != other.plan.problem)
        return say("another plan"), 1;
      if (own.from != "rank 0" || own.origin != ScheduleOrigin::Nearest) return say("another origin"), 1;
      if (own.plan.target != target) return say("another's target"), 1;
    }
    return 0;
  });
  for (const RankResult &result : processes.wait()) CHECK_MESSAGE(result.exitCode == 0, result.said);
}

TEST_CASE("where rank 0 cannot choose, every rank says so, and the job can go on") {
  auto processes = ranks([](Transport &transport, const Say &say) {
    auto chosen = chooseTogether(transport, Target::hostCpu(), [&]() -> Expected<std::vector<PlanChoice>> {
      return fail(Stage::Plan, "no schedule fits");
    });
    if (chosen || chosen.error().message.find("rank 0: no schedule fits") == std::string::npos)
      return say(chosen ? "no error" : chosen.error().text()), 1;
    return chooseTogether(transport, Target::hostCpu(), [&] { return choiceOf(0); }) ? 0 : 1;
  });
  for (const RankResult &result : processes.wait()) CHECK_MESSAGE(result.exitCode == 0, result.said);
}
