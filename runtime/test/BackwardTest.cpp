#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/Kernel.h"
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace tilewright;

namespace {

bool contains(const std::string &text, std::string_view piece) { return text.find(piece) != std::string::npos; }

Target target(std::string_view name) { return Target::parse(name).value(); }

Problem problemOf(int64_t dim, DType dtype = DType::BF16) {
  Problem problem;
  problem.dimQK = problem.dimV = dim;
  problem.dtype = dtype;
  problem.seqQ = problem.seqKV = 4096;
  problem.headsQ = 8;
  problem.headsKV = 2;
  problem.direction = Direction::Backward;
  return problem;
}

KernelPlan planOf(const Problem &problem, std::string_view name, KernelRole role, std::string_view overrides = "") {
  auto plan = KernelPlan::make(problem, target(name), role, ScheduleOverrides::parse(overrides).value());
  REQUIRE_MESSAGE(plan, plan.error().text());
  return *plan;
}

const std::vector<KernelRole> kFusedRoles = {KernelRole::Delta, KernelRole::Fused, KernelRole::Convert};
const std::vector<KernelRole> kTwoKernelRoles = {KernelRole::Delta, KernelRole::DKV, KernelRole::DQ};

std::vector<KernelRole> rolesWith(const Problem &problem, std::string_view name, std::string_view overrides = "") {
  auto roles = backwardRoles(problem, target(name), ScheduleOverrides::parse(overrides).value());
  REQUIRE_MESSAGE(roles, roles.error().text());
  return *roles;
}

std::string errorOf(std::string_view overrides) {
  auto parsed = ScheduleOverrides::parse(overrides);
  return parsed ? std::string() : parsed.error().text();
}

} // namespace

TEST_CASE("roles and strategies have names that parse back") {
  for (KernelRole role : {KernelRole::Fused, KernelRole::Convert})
    CHECK((parseKernelRole(toString(role)).value() == role));
  for (Backward strategy : {Backward::TwoKernel, Backward::Fused})
    CHECK((parseBackward(toString(strategy)).value() == strategy));
  CHECK(contains(parseBackward("both").error().text(), "expected two_kernel or fused, found \"both\""));
  CHECK((rolesOf(Direction::Backward) == kTwoKernelRoles));
  CHECK((rolesOf(Direction::Backward, Backward::Fused) == kFusedRoles));
  CHECK((rolesOf(Direction::Forward, Backward::Fused) == std::vector{KernelRole::Forward}));
}

TEST_CASE("fused is the default where it was measured and fits") {
  for (int64_t dim : {8, 32, 64, 96, 128})
    for (DType dtype : {DType::BF16, DType::F16})
      CHECK((rolesWith(problemOf(dim, dtype), "sm_90a") == kFusedRoles));
  CHECK((rolesWith(problemOf(64), "sm_80") == kFusedRoles));
  CHECK((rolesWith(problemOf(64), "sm_89") == kFusedRoles));
  // 64 x 128 tiles of dim 128 take 177152 bytes.
  CHECK((rolesWith(problemOf(128), "sm_80") == kTwoKernelRoles));
  CHECK((rolesWith(problemOf(136), "sm_90a") == kTwoKernelRoles));
  CHECK((rolesWith(problemOf(64, DType::F32), "sm_90a") == kTwoKernelRoles));
  CHECK((rolesWith(problemOf(64), "cpu") == kTwoKernelRoles));
}

TEST_CASE("overrides choose the strategy, themselves or by the kernels they name") {
  Problem problem = problemOf(128);
  CHECK((rolesWith(problem, "sm_90a", "backward=two_kernel") == kTwoKernelRoles));
  CHECK((rolesWith(problem, "sm_80", "backward=fused") == kFusedRoles));
  CHECK((rolesWith(problem, "sm_90a", "dkv.stages=2") == kTwoKernelRoles));
  CHECK((rolesWith(problem, "sm_80", "fused.stages=1") == kFusedRoles));
  CHECK((rolesWith(problem, "sm_90a", "tile_q=32") == kFusedRoles));
  // No fused kernel has 48 query rows, two kernels do.
  CHECK((rolesWith(problem, "sm_90a", "tile_q=48,warps=1") == kTwoKernelRoles));
  CHECK_FALSE(ScheduleOverrides::parse("backward=fused")->empty());

  CHECK(contains(errorOf("backward=one"), "backward: expected two_kernel or fused, found \"one\""));
  CHECK(contains(errorOf("backward=one"), "fused is faster"));
  CHECK(contains(errorOf("backward=fused,backward=fused"), "backward is set twice"));
  CHECK(contains(errorOf("fused.tile_q=64,dq.tile_q=64"), "has no"));
  CHECK(contains(errorOf("backward=two_kernel,fused.tile_q=64"), "fused.tile_q: backward=two_kernel has no fused"));
  CHECK(contains(errorOf("convert.tile_q=64"), "convert follows fused"));
  CHECK(contains(errorOf("tile=64"), "backward=two_kernel or backward=fused"));

  auto cpu = backwardRoles(problem, target("cpu"), ScheduleOverrides::parse("backward=fused").value());
  REQUIRE_FALSE(cpu);
  CHECK(contains(cpu.error().text(), "the cpu target computes gradients by two_kernel"));
  auto f32 =
      backwardRoles(problemOf(64, DType::F32), target("sm_90a"), ScheduleOverrides::parse("backward=fused").value());
  REQUIRE_FALSE(f32);
  CHECK(contains(f32.error().text(), "take bf16 and fp16, found fp32"));
  CHECK_FALSE(KernelPlan::make(problem, target("cpu"), KernelRole::Convert));
}

TEST_CASE("defaults are the measured schedules, within every target's limits") {
  Schedule narrow = planOf(problemOf(64), "sm_90a", KernelRole::Fused).schedule;
  CHECK(narrow == Schedule{.tileQ = 64, .tileKV = 64, .stages = 2, .warps = 4, .columnWarps = 2, .blocksPerSM = 3});
  Schedule wide = planOf(problemOf(128), "sm_90a", KernelRole::Fused).schedule;
  CHECK(wide == Schedule{.tileQ = 64, .tileKV = 128, .stages = 2, .warps = 8, .columnWarps = 2, .blocksPerSM = 1});
  // Three blocks of 74752 bytes need more than an SM of these has.
  CHECK(planOf(problemOf(64), "sm_80", KernelRole::Fused).schedule.blocksPerSM == 2);
  CHECK(planOf(problemOf(64), "sm_89", KernelRole::Fused).schedule.blocksPerSM == 1);
  for (const Target &cuda : Target::cudaTargets())
    for (int64_t dimQK = 8; dimQK <= 256; dimQK += 8)
      for (int64_t dimV : {int64_t{8}, int64_t{64}, dimQK, int64_t{256}})
        for (KernelRole role : {KernelRole::Fused, KernelRole::Convert}) {
          Problem problem = problemOf(dimQK);
          problem.dimV = dimV;
          CAPTURE(dimQK);
          CAPTURE(dimV);
          auto plan = KernelPlan::make(problem, cuda, role);
          REQUIRE_MESSAGE(plan, cuda.name << ": " << plan.error().text());
        }
}

TEST_CASE("shared memory is what the tiles take") {
  Problem problem = problemOf(128);
  Schedule schedule{.tileQ = 64, .tileKV = 128, .stages = 2, .warps = 8, .columnWarps = 2};
  int64_t loaded = 128 * 544 + 2 * (64 * 544 + 64 * 8);
  CHECK(schedule.sharedBytes(problem, target("sm_90a"), KernelRole::Fused) == loaded + 2 * 128 * 144); // P and dS
  schedule.columnWarps = 1;
  CHECK(schedule.sharedBytes(problem, target("sm_90a"), KernelRole::Fused) == loaded + 128 * 144); // dS
  CHECK(schedule.sharedBytes(problem, target("sm_90a"), KernelRole::Convert) == 64 * 272);
  schedule.tileQ = 16;
  CHECK(schedule.sharedBytes(problemOf(8), target("sm_90a"), KernelRole::Convert) == 1024); // the keys' mean
}

TEST_CASE("what fused cannot split is refused") {
  auto error = [](const Schedule &schedule, int64_t dim) {
    Status status = schedule.validate(problemOf(dim), target("sm_90a"), KernelRole::Fused);
    return status ? std::string() : status.error().text();
  };
  Schedule schedule{.tileQ = 48, .tileKV = 64, .warps = 4};
  CHECK(contains(error(schedule, 64), "tile_q: expected 16, 32, 64, 128 or 256, found 48"));
  schedule.tileQ = 16;
  CHECK(contains(error(schedule, 16), "warps=4 do not split dQ's tile of 16 x 16"));
  CHECK(error(schedule, 64) == "");
}

TEST_CASE("convert reads the sums where fused of the same overrides puts them") {
  Problem problem = problemOf(64);
  for (std::string_view overrides : {"", "fused.tile_q=32", "tile_q=32,column_warps=1,warps=2"}) {
    KernelPlan fused = planOf(problem, "sm_90a", KernelRole::Fused, overrides),
               convert = planOf(problem, "sm_90a", KernelRole::Convert, overrides);
    CHECK(convert.schedule.tileQ == fused.schedule.tileQ);
    CHECK(convert.schedule.columnWarps == fused.schedule.columnWarps);
    CHECK(convert.schedule.warps * 16 == fused.schedule.tileQ);
  }
  KernelPlan convert = planOf(problem, "sm_90a", KernelRole::Convert);
  KernelPlan causal = convert, capped = convert;
  causal.problem.causal = true;
  capped.problem.softcap = 30; // has no row sums
  KernelPlan cappedCausal = capped;
  cappedCausal.problem.causal = true;
  CHECK(causal.canonicalText() != convert.canonicalText()); // the row sums' keys are those that the mask shows
  CHECK(capped.canonicalText() != convert.canonicalText());
  CHECK(cappedCausal.canonicalText() == capped.canonicalText());
  CHECK(convert.symbol().starts_with("tw_convert_bf16_d64_m64c2_"));
  auto parsed = kernelPlanFromJson(nlohmann::json(convert));
  REQUIRE_MESSAGE(parsed, parsed.error().text());
  CHECK(*parsed == convert);
}

TEST_CASE("the workspace holds whole tiles, padded columns and the row sums") {
  Problem problem = problemOf(72);
  KernelPlan fused = planOf(problem, "sm_90a", KernelRole::Fused);
  KernelArgs args;
  args.batch = 3, args.headsQ = 8, args.headsKV = 2, args.seqQ = 129, args.seqKV = 100;
  CHECK(dqSumsBytes(fused, args) == int64_t{3} * 8 * 192 * (96 + 8) * 4);
  CHECK(dqSumsBytes(planOf(problem, "sm_90a", KernelRole::Convert), args) == dqSumsBytes(fused, args));
  problem.softcap = 30;
  CHECK(dqSumsBytes(planOf(problem, "sm_90a", KernelRole::Fused), args) == int64_t{3} * 8 * 192 * 96 * 4);
  CHECK(dqSumsBytes(planOf(problem, "sm_90a", KernelRole::DQ), args) == 0);
  args.seqQ = 0;
  CHECK(dqSumsBytes(fused, args) == 0);
}

TEST_CASE("launches: blocks and arguments") {
  KernelPlan fused = planOf(problemOf(64), "sm_90a", KernelRole::Fused),
             convert = planOf(problemOf(64), "sm_90a", KernelRole::Convert);
  alignas(16) static char memory[64];
  KernelArgs args;
  for (TensorRef *ref : {&args.q, &args.k, &args.v, &args.dO, &args.dQ, &args.dK, &args.dV})
    *ref = {memory, 512 * 1000, 64, 512};
  args.lse = args.delta = reinterpret_cast<float *>(memory);
  args.batch = 3, args.headsQ = 8, args.headsKV = 2, args.seqQ = 129, args.seqKV = 100;
  CHECK(blockCount(fused, args).value() == 2 * 2 * 3);
  CHECK(blockCount(convert, args).value() == 3 * 8 * 3);
  for (const KernelPlan &plan : {fused, convert}) {
    args.dqSums = nullptr;
    Status status = checkArgs(plan, args);
    REQUIRE_FALSE(status);
    CHECK(contains(status.error().text(), "dq_sums: no data"));
    CHECK(contains(status.error().text(), "dqSumsBytes()"));
    args.dqSums = reinterpret_cast<float *>(memory + 4);
    status = checkArgs(plan, args);
    REQUIRE_FALSE(status);
    CHECK(contains(status.error().message, "dq_sums: address"));
    args.dqSums = reinterpret_cast<float *>(memory);
    CHECK(checkArgs(plan, args));
  }
  KernelArgs none = args; // without queries nothing is added
  none.seqQ = 0, none.dqSums = nullptr;
  CHECK(checkArgs(fused, none));
}
