#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/plan/KernelPlan.h"
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <random>

using namespace tilewright;
using nlohmann::json;

namespace {

bool contains(const std::string &text, std::string_view piece) { return text.find(piece) != std::string::npos; }

std::string problemError(std::string_view text) {
  auto problem = problemFromJson(json::parse(text));
  return problem ? "" : problem.error().text();
}

KernelPlan randomPlan(uint64_t seed) {
  std::mt19937_64 engine(seed);
  auto below = [&](uint64_t bound) { return static_cast<int64_t>(engine() % bound); };
  Problem problem;
  problem.batch = below(5);
  problem.headsKV = 1 + below(4);
  problem.headsQ = problem.headsKV * (1 + below(12));
  problem.seqQ = below(5000);
  problem.seqKV = below(5000);
  if (below(2)) problem.scale = std::uniform_real_distribution(-1.0, 1.0)(engine);
  problem.dimQK = 8 * (1 + below(32));
  problem.dimV = 8 * (1 + below(32));
  problem.dtype = static_cast<DType>(below(3));
  problem.causal = below(2);
  problem.window = {below(3) ? -1 : below(2000), below(3) ? -1 : below(2000)};
  if (below(2)) problem.softcap = std::exponential_distribution(0.1)(engine) + 1e-3;
  if (below(2)) {
    problem.mask = "doc[q] == doc[k] || k < 7";
    problem.tables = {{"doc", false, {TableAxis::Q}}, {"doc", false, {TableAxis::K}}};
  }
  if (below(2)) {
    problem.score = "s - slope[b, h] * abs(q - k)";
    problem.tables.push_back({"slope", true, {TableAxis::B, TableAxis::H}});
  }
  problem.layout = static_cast<Layout>(below(2));
  auto role = static_cast<KernelRole>(below(4));
  problem.direction = role == KernelRole::Forward ? Direction::Forward : Direction::Backward;
  const auto &cuda = Target::cudaTargets();
  Target target = below(3) ? cuda[static_cast<size_t>(below(cuda.size()))] : Target::hostCpu();
  // What no default fits (wide fp32 gradients in 99 KiB) is no plan to carry around.
  if (problem.dtype == DType::F32 && !target.isCpu()) target = *Target::parse("sm_90a"), problem.dimQK = problem.dimV = 64;
  auto plan = KernelPlan::make(problem, target, role);
  REQUIRE_MESSAGE(plan, plan.error().text());
  if (target.isCpu() && role == KernelRole::Forward) plan->schedule.splitKV = static_cast<int>(1 + below(9));
  plan->schedule.rescaleThreshold = target.isCpu() || below(2) ? 0 : 8.25; // the cpu always rescales
  return *plan;
}

} // namespace

TEST_CASE("plans survive JSON and back, bit for bit") {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    KernelPlan plan = randomPlan(seed);
    std::string text = json(plan).dump();
    CAPTURE(text);
    auto again = kernelPlanFromJson(json::parse(text));
    REQUIRE(again);
    CHECK((*again == plan));
    CHECK(again->hash() == plan.hash());
    CHECK(json(*again).dump() == text);
  }
}

TEST_CASE("missing keys of a problem take its defaults") {
  auto problem = problemFromJson(json::parse("{}"));
  REQUIRE(problem);
  CHECK((*problem == Problem{}));
  CHECK(scheduleFromJson(json::parse("{}")));
}

TEST_CASE("unknown keys are named with their place") {
  CHECK(contains(problemError(R"({"sequence": 5})"), "problem: unknown key \"sequence\""));
  CHECK(contains(problemError(R"({"sequence": 5})"), "seq_q"));
  CHECK(contains(problemError(R"({"tables": [{"name": "a", "axis": ["q"]}]})"), "problem.tables[0]: unknown key"));
  auto schedule = scheduleFromJson(json::parse(R"({"tile": 64})"));
  REQUIRE_FALSE(schedule);
  CHECK(contains(schedule.error().message, "schedule: unknown key \"tile\""));
}

TEST_CASE("wrong types and values name the key, what was expected and what was found") {
  CHECK(problemError(R"({"batch": "2"})") == "input: problem.batch: expected an integer within 64 bits, found \"2\"");
  CHECK(contains(problemError(R"({"batch": 2.5})"), "found 2.5"));
  CHECK(contains(problemError(R"({"batch": 18446744073709551615})"), "within 64 bits, found 18446744073709551615"));
  CHECK(contains(problemError(R"({"batch": true})"), "found true"));
  CHECK(contains(problemError(R"({"causal": 1})"), "problem.causal: expected true or false, found 1"));
  CHECK(contains(problemError(R"({"mask": [1]})"), "problem.mask: expected a string, found an array"));
  CHECK(contains(problemError(R"({"scale": "x"})"), "expected a number or null"));
  CHECK(contains(problemError(R"({"softcap": null})"), "expected a number, found null"));
  CHECK(contains(problemError(R"({"dtype": "fp64"})"), "fp64"));
  CHECK(contains(problemError(R"({"dtype": 3})"), "problem.dtype: expected a string, found 3"));
  CHECK(contains(problemError(R"({"direction": "sideways"})"), "expected forward or backward"));
  CHECK(contains(problemError(R"({"window": [1]})"), "problem.window: expected two integers"));
  CHECK(contains(problemError(R"({"window": [1.5, 2]})"), "problem.window"));
  CHECK(contains(problemError(R"({"window": [-3, 0]})"), "found -3"));
  CHECK(problemError(R"({"window": [18446744073709551615, -1]})") == "");
  CHECK(contains(problemError(R"({"tables": {}})"), "problem.tables: expected an array"));
  CHECK(contains(problemError(R"({"tables": [{"name": "a", "axes": ["x"]}]})"), "problem.tables[0].axes"));
  CHECK(contains(problemError(R"({"tables": [{"name": "a", "type": "int64"}]})"), "int32 or float32"));
  CHECK(contains(problemError(R"({"tables": [3]})"), "problem.tables[0]: expected an object, found 3"));
  CHECK(contains(problemError("[]"), "problem: expected an object, found an array"));
  CHECK(contains(problemError("null"), "found null"));
  CHECK(contains(problemError(R"({"heads_q": 33, "heads_kv": 2})"), "33 query heads and 2 kv heads"));
  auto schedule = scheduleFromJson(json::parse(R"({"tile_q": 4294967296})"));
  REQUIRE_FALSE(schedule);
  CHECK(contains(schedule.error().message, "within 32 bits"));
  CHECK_FALSE(scheduleFromJson(json::parse(R"({"tile_q": 17})")));
  CHECK_FALSE(scheduleFromJson(json::parse(R"({"order": "random"})")));
}

TEST_CASE("targets may state their own limits and no others") {
  json sm80 = *Target::parse("sm_80");
  CHECK(targetFromJson(sm80));
  CHECK(targetFromJson(json{{"name", "sm_80"}}));
  sm80["sm_count"] = 7;
  CHECK(targetFromJson(sm80)->smCount == 7);
  sm80["sm_count"] = 0;
  CHECK_FALSE(targetFromJson(sm80));
  json enlarged = *Target::parse("sm_80");
  enlarged["shared_bytes_per_block"] = 1 << 20;
  auto refused = targetFromJson(enlarged);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == "target.shared_bytes_per_block: sm_80 has 166912, found 1048576");
  CHECK_FALSE(targetFromJson(json{{"name", "sm_70"}}));
  CHECK_FALSE(targetFromJson(json::object()));
  CHECK(targetFromJson(json{{"name", "cpu"}, {"cpu_level", "x86-64-v2"}})->vectorBits == 128);
  CHECK_FALSE(targetFromJson(json{{"name", "cpu"}, {"cpu_level", "x86-64-v2"}, {"vector_bits", 512}}));
  CHECK_FALSE(targetFromJson(json{{"name", "cpu"}, {"cpu_level", "pentium"}}));
  CHECK(targetFromJson(json{{"name", "cpu"}, {"threads", 7}})->threads == 7);
  CHECK(targetFromJson(json{{"name", "cpu"}, {"threads", 0}}).error().message ==
        "target.threads: expected at least 1, found 0");
}

TEST_CASE("a plan needs all its parts and must hold together") {
  json plan = randomPlan(3);
  CHECK(kernelPlanFromJson(plan));
  for (const char *part : {"problem", "schedule", "target"}) {
    json incomplete = plan;
    incomplete.erase(part);
    auto refused = kernelPlanFromJson(incomplete);
    REQUIRE_FALSE(refused);
    CHECK(contains(refused.error().message, std::string("plan.") + part + ": missing"));
  }
  json extra = plan;
  extra["version"] = 1;
  CHECK_FALSE(kernelPlanFromJson(extra));
}

TEST_CASE("deep nesting is described shallowly") {
  json deep = json::array();
  for (int i = 0; i < 2000; ++i)
    deep = json::array({std::move(deep)});
  auto refused = problemFromJson(json{{"batch", deep}});
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "found an array"));
}
