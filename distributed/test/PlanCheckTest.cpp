#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/distributed/plan/PlanCheck.h"
#include "tilewright/distributed/plan/Strategy.h"
#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace tilewright;
using namespace tilewright::dist;

namespace {

StepPlan plan(Strategy strategy, int worldSize = 2, int accumulation = 1, ElementType gradients = ElementType::F32) {
  ParameterList list = {{"embedding", {100, 3}, 0.1}, {"weight", {40, 40}, 0.1}, {"gain", {40}, 0}};
  auto built =
      buildPlan(list, {strategy, worldSize, 1000, ElementType::F32, gradients, ElementType::F32, accumulation});
  REQUIRE_MESSAGE(built, (built ? "" : built.error().text()));
  return *built;
}

StepOp &op(StepPlan &plan, std::string_view name) {
  int index = plan.opNamed(name);
  REQUIRE_MESSAGE(index >= 0, std::string(name));
  return plan.ops[static_cast<size_t>(index)];
}

void erase(StepPlan &plan, std::string_view name) {
  const int gone = plan.opNamed(name);
  REQUIRE(gone >= 0);
  plan.ops.erase(plan.ops.begin() + gone);
  for (StepOp &op : plan.ops) {
    std::erase_if(op.waits, [&](const Wait &wait) { return wait.op == gone; });
    for (Wait &wait : op.waits)
      wait.op -= wait.op > gone;
  }
}

void refused(const StepPlan &plan, std::initializer_list<std::string_view> parts,
             Status (*check)(const StepPlan &) = checkPlan) {
  Status status = check(plan);
  REQUIRE_FALSE(status);
  for (std::string_view part : parts)
    CHECK_MESSAGE(status.error().message.find(part) != std::string::npos, status.error().message);
}

} // namespace

TEST_CASE("races: each wait of each strategy is needed, and what it prevents is named") {
  for (Strategy strategy : allStrategies())
    for (auto [worldSize, accumulation] : {std::pair{2, 1}, {3, 4}}) {
      const StepPlan good = plan(strategy, worldSize, accumulation, ElementType::BF16);
      int races = 0;
      for (size_t i = 0; i < good.ops.size(); ++i) {
        if (good.ops[i].waits.empty()) continue;
        StepPlan broken = good;
        broken.ops[i].waits.clear();
        Status status = checkPlan(broken);
        if (status) continue; // implied by another op's waits
        ++races;
        CHECK_MESSAGE(status.error().message.find("race") != std::string::npos, status.error().message);
      }
      CHECK(races >= 8);
    }
}

TEST_CASE("races: an update next to a gather of the same shard, with no event between") {
  StepPlan broken = plan(Strategy::Zero1);
  op(broken, "gather.0").waits.clear();
  refused(broken, {"race", "gather.0", "update.0", "parameters[0, "});
  broken = plan(Strategy::Zero1);
  op(broken, "forward.1").waits.clear();
  refused(broken, {"race", "forward.1 of the next step", "update.1", "parameters["});
  broken = plan(Strategy::Bucketed);
  op(broken, "reduce.0").waits.clear();
  refused(broken, {"race", "reduce.0", "backward.", "gradients["});
  broken = plan(Strategy::Overlap);
  op(broken, "backward.gain").waits.clear();
  refused(broken, {"race", "backward.gain of the next step", "gradients["});
}

TEST_CASE("an op cannot wait for a later one, but for the previous step's") {
  StepPlan broken = plan(Strategy::Zero1);
  op(broken, "forward.0").waits = {{broken.opNamed("gather.0"), false}};
  refused(broken, {"forward.0", "gather.0", "wait for ever"});
}

TEST_CASE("collectives: all ranks, one order") {
  StepPlan broken = plan(Strategy::Bucketed, 3);
  op(broken, "reduce.1").rank = 2;
  refused(broken, {"reduce.1", "rank 2 only"});
  broken = plan(Strategy::Bucketed);
  op(broken, "reduce.1").lane = Lane::Compute;
  refused(broken, {"reduce.0", "reduce.1", "no order"});
}

TEST_CASE("messages: every send has its receive in the same group") {
  StepPlan ring = plan(Strategy::Flat, 3);
  ring.buffers.push_back({"kv", Category::Communication, ElementType::F32, {20}});
  const int kv = static_cast<int>(ring.buffers.size()) - 1;
  StepOp send{"send", OpKind::Send, Lane::Communication}, receive{"receive", OpKind::Receive, Lane::Communication};
  send.uses = {{Access::Read, {kv, 0, 10, Part::Whole}}};
  receive.uses = {{Access::Write, {kv, 10, 10, Part::Whole}}};
  send.peer = 1;
  receive.peer = -1;
  send.group = receive.group = "hop";
  ring.ops.push_back(send);
  ring.ops.push_back(receive);
  Status good = checkPlan(ring);
  CHECK_MESSAGE(good, (good ? "" : good.error().text()));

  StepPlan broken = ring;
  broken.ops.back().group = "another";
  refused(broken, {"receive", "has no send", "'another'"});
  broken = ring;
  broken.ops.back().peer = 1;
  refused(broken, {"from rank", "has no"});
  broken = ring;
  broken.ops.back().rank = 1;
  refused(broken, {"has no receive"});
  broken = ring;
  broken.ops.back().uses[0].span.count = 9;
  refused(broken, {"40 bytes", "36"});
  broken = ring;
  broken.ops.back().waits = {{broken.opNamed("send"), false}};
  refused(broken, {"receive", "waits for an op of its own group"});
  broken = ring;
  StepOp between = broken.ops.back();
  between.name = "again";
  between.group = "other";
  broken.ops.insert(broken.ops.end() - 1, between);
  broken.ops.push_back(send);
  broken.ops.back().name = "answer";
  broken.ops.back().group = "other";
  refused(broken, {"receive", "in the middle of the group"});
}

TEST_CASE("values: sums that are missing or made twice, parameters that do not arrive") {
  StepPlan broken = plan(Strategy::Bucketed);
  erase(broken, "reduce.0");
  refused(broken, {"norm.0", "not summed over the ranks"}, checkFlow);
  broken = plan(Strategy::Bucketed);
  StepOp again = op(broken, "reduce.0");
  again.name = "again";
  broken.ops.insert(broken.ops.begin() + broken.opNamed("finish"), again);
  for (StepOp &o : broken.ops)
    for (Wait &wait : o.waits)
      wait.op += wait.op >= broken.opNamed("again");
  refused(broken, {"again", "already the same on all ranks"});
  broken = plan(Strategy::Zero1);
  erase(broken, "gather.0");
  op(broken, "forward.0").waits = {{broken.opNamed("update.0"), true}};
  refused(broken, {"forward.0", "on rank 0 only", "need it on all ranks"});
  broken = plan(Strategy::Zero1Broadcast);
  op(broken, "broadcast.weight").root = 0;
  refused(broken, {"broadcast.weight", "on rank 1 only", "from rank 0"});
  broken = plan(Strategy::Zero1);
  op(broken, "norm.0").uses[0].span.part = Part::Whole; // the norm over gradients of which only a shard is summed
  refused(broken, {"norm.0 on rank 1", "on rank 0 only", "summed gradients"});
  broken = plan(Strategy::Zero1);
  op(broken, "scalars").uses[0].span.count = 1;
  refused(broken, {"scale", "not summed over the ranks"});
}

TEST_CASE("coverage: every element of every parameter is updated exactly once") {
  StepPlan broken = plan(Strategy::Zero1Broadcast);
  StepOp twice = op(broken, "update.gain");
  twice.name = "twice";
  broken.ops.push_back(twice);
  CHECK(checkFlow(broken).error().message.find("both update") != std::string::npos);
  broken = plan(Strategy::Zero1Broadcast);
  for (Use &use : op(broken, "update.weight").uses)
    if (use.span.count == 1600) use.span.count = 1000;
  CHECK(checkFlow(broken).error().message == "plan: elements [1000, 1600) of parameter weight are updated by no rank");
}

TEST_CASE("structure: spans, types and uses") {
  StepPlan broken = plan(Strategy::Zero1, 3);
  op(broken, "gather.0").uses[0].span.count += 1000000;
  refused(broken, {"gather.0", "outside of its buffer"});
  broken = plan(Strategy::Zero1, 3);
  op(broken, "reduce.0").uses[0].span.count -= 1;
  refused(broken, {"reduce.0", "3 ranks do not divide"});
  broken = plan(Strategy::Zero1);
  op(broken, "update.0").uses.pop_back();
  refused(broken, {"update.0", "expected 6 uses, found 4"});
  broken = plan(Strategy::Zero1);
  broken.buffers[0].type = ElementType::BF16;
  refused(broken, {"update.", "master weights"});
  broken = plan(Strategy::Flat);
  op(broken, "backward.gain").uses[0].span.begin += 1;
  refused(broken, {"backward.gain", "not where the gradient"});
  broken = plan(Strategy::Flat);
  op(broken, "scale").name = "finish";
  refused(broken, {"two ops are called 'finish'"});
  broken = plan(Strategy::Flat);
  op(broken, "reduce.all").lane = Lane::Host;
  refused(broken, {"reduce.all", "lane host"});
}

TEST_CASE("roles: what an engine looks for in a plan is there, once, and in its place") {
  auto with = [](Strategy strategy, auto change, int accumulation = 1) {
    StepPlan broken = plan(strategy, 2, accumulation);
    change(broken);
    return broken;
  };
  auto buffer = [](StepPlan &p, std::string_view name) -> PlanBuffer & {
    return p.buffers[static_cast<size_t>(p.bufferNamed(name))];
  };
  for (const char *name : {"parameters", "gradients"}) {
    refused(with(Strategy::Flat, [&](StepPlan &p) { buffer(p, name).name = "other"; }), {"no buffer", name});
    refused(with(Strategy::Flat, [&](StepPlan &p) { buffer(p, name).category = Category::Communication; }),
            {name, "holds communication"});
    refused(with(Strategy::Flat,
                 [&](StepPlan &p) {
                   buffer(p, name).elements = {buffer(p, name).elements[0], buffer(p, name).elements[0] + 1};
                 }),
            {name, "another size"});
  }
  refused(with(Strategy::Flat, [](StepPlan &p) { erase(p, "scale"); }), {"one scale op, found 0"}, checkRoles);
  refused(with(Strategy::Flat, [](StepPlan &p) { erase(p, "backward.gain"); }),
          {"parameter gain", "one backward op, found 0"}, checkRoles);
  refused(with(
              Strategy::Flat, [](StepPlan &p) { erase(p, "accumulate"); }, 4),
          {"4 micro-batches", "accumulate op, found 0"}, checkRoles);
  refused(with(Strategy::Flat, [](StepPlan &p) { op(p, "backward.gain").rank = 1; }), {"backward.gain", "all ranks"});
  refused(with(Strategy::Flat, [](StepPlan &p) { p.parameters[2].begin = p.parameters[1].begin; }), {"backward.gain"});
  refused(with(Strategy::Flat, [](StepPlan &p) { p.parameters[2].begin = p.parameters[1].begin + 3; }),
          {"gain", "weight", "lie on one another"}, checkRoles);
  refused(with(Strategy::Flat, [](StepPlan &p) { p.parameters[2].begin = 1 << 20; }),
          {"parameter gain", "has ", " elements"}, checkRoles);
  refused(with(Strategy::Flat,
               [](StepPlan &p) {
                 p.parameters[2].shape = {int64_t{1} << 40, int64_t{1} << 40};
               }),
          {"parameter gain", "2^56"});
  refused(with(Strategy::Flat, [](StepPlan &p) { p.parameters[2].begin = -8; }), {"parameter gain", "negative"});
  refused(with(Strategy::Flat, [&](StepPlan &p) { buffer(p, "m").elements = {int64_t{1} << 62}; }),
          {"buffer m", "2^56"});
  refused(with(Strategy::Flat,
               [](StepPlan &p) {
                 op(p, "reduce.all").uses[0].span = {p.bufferNamed("gradients"), INT64_MAX, INT64_MAX, Part::Whole};
               }),
          {"reduce.all", "outside of its buffer"});
  refused(with(Strategy::Zero1Broadcast, [](StepPlan &p) { op(p, "update.gain").uses[0].span.begin += 8; }),
          {"update.gain", "gradients of other elements"}, checkRoles);
  refused(with(Strategy::Flat,
               [](StepPlan &p) {
                 StepOp &update = op(p, "update.0");
                 update.uses[4].span.buffer = update.uses[3].span.buffer; // v is m
               }),
          {"update.0", "both keep state in m["}, checkRoles);
  refused(with(Strategy::Bucketed, [](StepPlan &p) { op(p, "update.1").uses[3].span.begin = 0; }),
          {"both keep state in m["}, checkRoles);
}
