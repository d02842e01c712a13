#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/distributed/plan/PlanCheck.h"
#include "tilewright/distributed/plan/PlanCost.h"
#include "tilewright/distributed/plan/Strategy.h"
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace tilewright;
using namespace tilewright::dist;

namespace {

ParameterList layers(int count) {
  ParameterList list;
  for (int i = 0; i < count; ++i) {
    list.push_back({"layer" + std::to_string(i) + ".weight", {17, 5 + i}, 0.1});
    list.push_back({"layer" + std::to_string(i) + ".gain", {17}, 0});
  }
  return list;
}

StepPlan build(StrategyOptions options, const ParameterList &list = layers(6)) {
  auto plan = buildPlan(list, options);
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().text()));
  return *plan;
}

} // namespace

TEST_CASE("every strategy builds a plan that passes its check, whatever the options") {
  for (Strategy strategy : allStrategies())
    for (int worldSize : {1, 2, 3, 5, 8})
      for (int64_t cap : {int64_t{1}, int64_t{1000}, int64_t{1} << 40})
        for (int accumulation : {1, 4})
          for (ElementType reduction : {ElementType::F32, ElementType::BF16})
            for (ElementType type : {ElementType::F32, ElementType::BF16}) {
              StrategyOptions options{strategy, worldSize, cap, type, type, reduction, accumulation};
              CAPTURE(toString(strategy));
              CAPTURE(worldSize);
              auto plan = buildPlan(layers(4), options);
              REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().text()));
              options.globalNorm = false;
              plan = buildPlan(layers(4), options);
              CHECK_MESSAGE(plan, (plan ? "" : plan.error().text()));
            }
}

TEST_CASE("a plan goes through JSON unchanged and keeps its hash; another plan has another") {
  for (Strategy strategy : allStrategies()) {
    StepPlan plan = build({strategy, 3, 1000, ElementType::BF16, ElementType::F32, ElementType::BF16, 2});
    auto back = stepPlanFromJson(nlohmann::json::parse(nlohmann::json(plan).dump()));
    REQUIRE_MESSAGE(back, (back ? "" : back.error().text()));
    CHECK(*back == plan);
    CHECK(back->hash() == plan.hash());
    back->ops.back().waits.clear();
    CHECK(back->hash() != plan.hash());
    CHECK(describeDifference(plan.canonicalText(), back->canonicalText()).find(plan.ops.back().name) !=
          std::string::npos);
    CHECK((plan.describe().find("reduce-scatter") != std::string::npos) == (strategy == Strategy::Zero1));
  }
}

TEST_CASE("JSON that is not a plan is refused with the place") {
  nlohmann::json json = build({Strategy::Zero1, 2});
  auto refusal = [&](nlohmann::json changed) {
    auto plan = stepPlanFromJson(changed);
    REQUIRE_FALSE(plan);
    return plan.error().message;
  };
  auto changed = json;
  changed["ops"][2]["lame"] = 1;
  CHECK(refusal(changed).find("plan.ops[2]") != std::string::npos);
  changed = json;
  changed["ops"][0]["kind"] = "dance";
  CHECK(refusal(changed).find("plan.ops[0].kind") != std::string::npos);
  changed = json;
  changed["buffers"][0]["elements"] = {1, 2, 3};
  CHECK(refusal(changed).find("one a rank") != std::string::npos);
  changed = json;
  changed["ops"][1]["waits"][0]["op"] = 100000;
  CHECK(refusal(changed).find("waits for op 100000") != std::string::npos);
  changed = json;
  changed["world_size"] = 0;
  CHECK(refusal(changed).find("plan.world_size") != std::string::npos);
}

TEST_CASE("parameters and options that make no sense are refused by name") {
  auto refusal = [](ParameterList list, StrategyOptions options = {}) {
    auto plan = buildPlan(list, options);
    REQUIRE_FALSE(plan);
    return plan.error().message;
  };
  CHECK(refusal({}).find("no parameters") != std::string::npos);
  CHECK(refusal({{"a", {2}, 0}, {"a", {3}, 0}}).find("two parameters are called 'a'") != std::string::npos);
  CHECK(refusal({{"a", {2, -1}, 0}}).find("(2, -1)") != std::string::npos);
  CHECK(refusal({{"a", {int64_t{1} << 40, int64_t{1} << 40}, 0}}).find("too large") != std::string::npos);
  CHECK(refusal({{"a", {2}, -1}}).find("weight decay") != std::string::npos);
  CHECK(refusal({{"a", {2}, 0}}, {Strategy::Flat, 0}).find("world size") != std::string::npos);
  CHECK(refusal({{"a", {2}, 0}}, {Strategy::Flat, 1, 100, ElementType::F64}).find("float64") != std::string::npos);
}

TEST_CASE("traffic: what each rank sends, by strategy") {
  const ParameterList list = {{"w", {1 << 20}, 0}};
  const int64_t bytes = 4 << 20;
  for (int n : {2, 4}) {
    auto sent = [&](Strategy strategy, OpKind kind, int rank) {
      return predictTraffic(build({strategy, n}, list), rank)[kind].sentBytes;
    };
    const int64_t scalars = 8; // one F64, owned by rank 0: it sends the sum to the others
    CHECK(sent(Strategy::Flat, OpKind::AllReduce, 0) == 2 * (n - 1) * bytes / n + (n - 1) * scalars);
    CHECK(sent(Strategy::Flat, OpKind::AllReduce, 1) == 2 * (n - 1) * bytes / n + scalars);
    CHECK(sent(Strategy::Zero1, OpKind::ReduceScatter, 1) == (n - 1) * bytes / n);
    CHECK(sent(Strategy::Zero1, OpKind::AllGather, 1) == (n - 1) * bytes / n);
    CHECK(sent(Strategy::Zero1Broadcast, OpKind::Broadcast, 1) == (n - 2) * bytes / n);
    CHECK(sent(Strategy::Zero1Broadcast, OpKind::Broadcast, 0) == 2 * (n - 1) * bytes / n);
  }
  StrategyOptions half{Strategy::Zero1, 2, 1 << 20, ElementType::BF16, ElementType::F32, ElementType::F32};
  CHECK(predictTraffic(build(half, list), 0)[OpKind::AllGather].sentBytes == bytes / 4);
}

TEST_CASE("memory: optimizer state is total / N plus at most 0.1 % padding for a model of 128 million parameters") {
  ParameterList list = {{"embedding", {10000, 768}, 0.1}};
  for (int layer = 0; layer < 12; ++layer)
    for (auto [name, rows] : {std::pair{"q", 768},
                              {"k", 768},
                              {"v", 768},
                              {"o", 768},
                              {"up", 3072},
                              {"gate", 3072},
                              {"down", 3072},
                              {"norm1", 1},
                              {"norm2", 1}})
      list.push_back({"layers." + std::to_string(layer) + "." + name, {rows, 768}, 0.1});
  list.push_back({"norm", {768}, 0});
  list.push_back({"head", {10000, 768}, 0.1});
  int64_t total = 0;
  for (const ParameterSpec &p : list)
    total += PlanParameter{p.name, p.shape, 0, 0}.elements();
  CHECK(list.size() == 111);
  CHECK(total == 128'625'408);
  for (int n : {1, 2, 3, 4, 7, 8}) {
    const int64_t state = predictMemory(build({Strategy::Zero1, n}, list), 0).of(Category::OptimizerState);
    CHECK(state >= 8 * total / n);
    CHECK(static_cast<double>(state) <= 8.0 * static_cast<double>(total) / n * 1.001);
  }
  int64_t all = 0;
  for (int rank = 0; rank < 4; ++rank)
    all += predictMemory(build({Strategy::Zero1Broadcast, 4}, list), rank).of(Category::OptimizerState);
  CHECK(all == 8 * total);
}

TEST_CASE("buckets follow the order of arrival and the cap") {
  StepPlan plan = build({Strategy::Bucketed, 2, 4096},
                        {{"first", {1000}, 0}, {"big", {5000}, 0}, {"last", {10}, 0}, {"end", {20}, 0}});
  CHECK(plan.parameters[3].begin == 0);
  CHECK(plan.parameters[2].begin == 64);
  CHECK(plan.parameters[1].begin == 128);
  CHECK(plan.parameters[0].begin % 128 == 0);
  CHECK(predictTraffic(plan, 0)[OpKind::AllReduce].calls == 4); // three buckets and the token count
  for (const PlanParameter &p : plan.parameters)
    CHECK(p.begin % kParameterAlignment == 0);
}
