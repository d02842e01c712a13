#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/tuning/ScheduleChoice.h"
#include "TunedSamples.h"

using namespace tilewright;

namespace {

struct Tuned {
  TemporaryFolder folder;
  Warnings warnings;
  std::shared_ptr<TunedStore> store = openStore(folder.path, warnings.log);
  TunedLookup lookup{store, sampleCandidate(64, 1).environment};

  void add(const TunedCandidate &candidate) { REQUIRE(store->put(std::span(&candidate, 1))); }

  PlanChoice forward(const Problem &problem, const char *overrides = "") {
    auto parsed = ScheduleOverrides::parse(overrides);
    REQUIRE(parsed);
    auto plans = choosePlans(problem, sampleTarget(), *parsed, lookup);
    REQUIRE_MESSAGE(plans, plans.error().text());
    for (const PlanChoice &choice : *plans)
      CHECK(choice.plan.validate());
    return plans->front();
  }
};

Schedule defaultOf(const Problem &problem, KernelRole role = KernelRole::Forward) {
  return Schedule::defaultFor(problem, sampleTarget(), role);
}

TunedCandidate gradient(KernelRole role, double ms) {
  TunedCandidate c = sampleCandidate(64, ms);
  c.problem.direction = Direction::Backward;
  c.role = role;
  c.schedule = defaultOf(c.problem, role);
  return c;
}

} // namespace

TEST_CASE("without measurements everything is the default, as KernelPlan::make gives it") {
  for (Direction direction : {Direction::Forward, Direction::Backward}) {
    Problem problem = sampleProblem();
    problem.direction = direction;
    auto plans = choosePlans(problem, sampleTarget());
    REQUIRE(plans);
    CHECK(plans->size() == (direction == Direction::Forward ? 1 : 4));
    for (const PlanChoice &choice : *plans) {
      CHECK((choice.origin == ScheduleOrigin::Default));
      CHECK(choice.plan == *KernelPlan::make(choice.plan.problem, sampleTarget(), choice.plan.role));
    }
  }
}

TEST_CASE("the fastest measured schedule is taken, and ties go to the default") {
  Tuned tuned;
  const Schedule byDefault = defaultOf(sampleProblem());
  tuned.add(sampleCandidate(byDefault.tileKV, 1));
  tuned.add(sampleCandidate(16, 0.995));
  CHECK(tuned.forward(sampleProblem()).plan.schedule == byDefault);
  CHECK((tuned.forward(sampleProblem()).origin == ScheduleOrigin::Exact));
  tuned.add(sampleCandidate(32, 0.98));
  CHECK(tuned.forward(sampleProblem()).plan.schedule.tileKV == 32);
}

TEST_CASE("confirmed times decide where there are any") {
  Tuned tuned;
  TunedCandidate byDefault = sampleCandidate(defaultOf(sampleProblem()).tileKV, 1), other = sampleCandidate(32, 0.9);
  byDefault.confirmed = other.confirmed = true;
  tuned.add(byDefault);
  tuned.add(other);
  tuned.add(sampleCandidate(16, 0.5)); // one lucky sample
  CHECK(tuned.forward(sampleProblem()).plan.schedule.tileKV == 32);
}

TEST_CASE("candidates that failed are never chosen") {
  Tuned tuned;
  TunedCandidate crashed = sampleCandidate(16, 0);
  crashed.outcome = TuningOutcome::Crashed;
  tuned.add(crashed);
  CHECK((tuned.forward(sampleProblem()).origin == ScheduleOrigin::Default));
}

TEST_CASE("the nearest problem of the family serves, and says which it was") {
  Tuned tuned;
  for (auto [length, tileKV] : {std::pair{1024, 16}, std::pair{4096, 32}}) {
    tuned.add(sampleCandidate(defaultOf(sampleProblem()).tileKV, 1, length));
    tuned.add(sampleCandidate(tileKV, 0.5, length));
  }
  PlanChoice choice = tuned.forward(sampleProblem(1500));
  CHECK((choice.origin == ScheduleOrigin::Nearest));
  CHECK(choice.from == "b2 h8 q1024 kv1024");
  CHECK(choice.plan.schedule.tileKV == 16);
  CHECK(choice.plan.problem == sampleProblem(1500));
  CHECK(tuned.forward(sampleProblem(3000)).plan.schedule.tileKV == 32);
  CHECK(tuned.forward(sampleProblem(1024)).from.empty());
  CHECK((tuned.forward(sampleProblem(64)).origin == ScheduleOrigin::Default)); // too far away
  CHECK((tuned.forward(sampleProblem(0)).origin == ScheduleOrigin::Default));
  Problem other = sampleProblem(1500);
  other.causal = true; // another family
  CHECK((tuned.forward(other).origin == ScheduleOrigin::Default));
}

TEST_CASE("the nearest problem whose default won confirms this problem's own default") {
  Tuned tuned;
  Problem shorter = sampleProblem(64), here = sampleProblem(100);
  REQUIRE(defaultOf(shorter) != defaultOf(here));
  TunedCandidate won = sampleCandidate(64, 1, 64);
  won.schedule = defaultOf(shorter);
  tuned.add(won);
  PlanChoice choice = tuned.forward(here);
  CHECK((choice.origin == ScheduleOrigin::Nearest));
  CHECK(choice.plan.schedule == defaultOf(here));
}

TEST_CASE("fields that the user sets win; what was measured with them is used") {
  Tuned tuned;
  tuned.add(sampleCandidate(32, 0.5));
  TunedCandidate oneStage = sampleCandidate(16, 0.8);
  oneStage.schedule.stages = 1;
  tuned.add(oneStage);
  PlanChoice choice = tuned.forward(sampleProblem(), "stages=1");
  CHECK(choice.plan.schedule == oneStage.schedule);
  CHECK((choice.origin == ScheduleOrigin::Exact));
  choice = tuned.forward(sampleProblem(), "forward.tile_kv=48");
  CHECK(choice.plan.schedule.tileKV == 48);
  CHECK((choice.origin == ScheduleOrigin::Default));
  CHECK(tuned.forward(sampleProblem(), "dq.tile_kv=48").plan.schedule.tileKV == 32); // another kernel's field
}

TEST_CASE("rows of another machine do not count, and stale ones give one warning") {
  Tuned tuned;
  TunedCandidate elsewhere = sampleCandidate(16, 0.5);
  elsewhere.environment.device = "Another GPU";
  tuned.add(elsewhere);
  CHECK((tuned.forward(sampleProblem()).origin == ScheduleOrigin::Default));
  CHECK(tuned.warnings.texts.empty());
  TunedCandidate stale = sampleCandidate(32, 0.5);
  stale.environment.generator = "older";
  tuned.add(stale);
  for (int i = 0; i < 3; ++i)
    CHECK((tuned.forward(sampleProblem()).origin == ScheduleOrigin::Default));
  CHECK(tuned.warnings.texts.size() == 1);
  // Without a device (compiling for a machine elsewhere) any will do.
  tuned.lookup.here.device.clear();
  CHECK(tuned.forward(sampleProblem()).plan.schedule.tileKV == 16);
}

TEST_CASE("this driver and the default policy go first") {
  Tuned tuned;
  TunedCandidate older = sampleCandidate(16, 0.1), warm = sampleCandidate(48, 0.1), here = sampleCandidate(32, 0.5);
  older.environment.driver = "CUDA 12.4";
  older.recorded = 5000;
  warm.environment.policy = kGpuWarmPolicy;
  tuned.add(older);
  CHECK(tuned.forward(sampleProblem()).plan.schedule.tileKV == 16); // better than nothing
  tuned.add(warm);
  CHECK(tuned.forward(sampleProblem()).plan.schedule.tileKV == 48);
  tuned.add(here);
  CHECK(tuned.forward(sampleProblem()).plan.schedule.tileKV == 32);
}

TEST_CASE("a schedule that breaks the target's limits is ignored") {
  Tuned tuned;
  TunedCandidate impossible = sampleCandidate(1024, 0.01);
  tuned.add(impossible);
  CHECK((tuned.forward(sampleProblem()).origin == ScheduleOrigin::Default));
}

TEST_CASE("the faster strategy of the gradients is taken where both were measured") {
  for (double fusedMs : {1.0, 3.0, 2.0}) {
    Tuned tuned;
    tuned.add(gradient(KernelRole::DKV, 1));
    tuned.add(gradient(KernelRole::DQ, 1));
    tuned.add(gradient(KernelRole::Fused, fusedMs));
    Problem problem = sampleProblem();
    problem.direction = Direction::Backward;
    auto plans = choosePlans(problem, sampleTarget(), {}, tuned.lookup);
    REQUIRE(plans);
    const bool fused = (*plans)[2].plan.role == KernelRole::Fused;
    CHECK(fused == (fusedMs == 2 ? defaultBackward(problem, sampleTarget()) == Backward::Fused : fusedMs < 2));
    if (fused) {
      REQUIRE(plans->size() == 4);
      CHECK(((*plans)[3].plan == *KernelPlan::make((*plans)[3].plan.problem, sampleTarget(), KernelRole::Convert)));
    }
    auto overrides = ScheduleOverrides::parse(fused ? "backward=two_kernel" : "backward=fused");
    plans = choosePlans(problem, sampleTarget(), *overrides, tuned.lookup);
    REQUIRE(plans);
    CHECK(((*plans)[2].plan.role == KernelRole::Fused) == !fused);
  }
}

TEST_CASE("distances") {
  TuningSizes a(sampleProblem(1024)), b(sampleProblem(2048)), none(sampleProblem(0));
  CHECK(a.distanceTo(a) == 0);
  CHECK(a.distanceTo(b) == doctest::Approx(2));
  CHECK(b.distanceTo(a) == doctest::Approx(2));
  CHECK(std::isinf(a.distanceTo(none)));
  CHECK(none.distanceTo(none) == 0);
}
