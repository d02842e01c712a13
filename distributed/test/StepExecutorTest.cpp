// The executor with a device and a transport that only write down what they are asked, in order: what a stream would
// see.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/distributed/engine/StepExecutor.h"
#include "tilewright/distributed/plan/PlanCheck.h"
#include "tilewright/distributed/plan/Strategy.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace tilewright;
using namespace tilewright::dist;

namespace {

class Journal {
public:
  void add(std::string entry) {
    std::lock_guard lock(mutex);
    entries.push_back(std::move(entry));
  }
  /// Position of the first such entry; -1 if there is none.
  int find(const std::string &entry) const {
    std::lock_guard lock(mutex);
    const auto it = std::find(entries.begin(), entries.end(), entry);
    return it == entries.end() ? -1 : static_cast<int>(it - entries.begin());
  }

private:
  mutable std::mutex mutex;
  std::vector<std::string> entries;
};

/// Work starts when its group ends, as NCCL's does.
class JournalTransport final : public Transport {
public:
  explicit JournalTransport(Journal &journal) : journal(journal) {}
  int rank() const override { return 0; }
  int worldSize() const override { return 2; }
  std::string_view name() const override { return "journal"; }
  Status run(const Collective &c) override {
    if (grouped)
      waiting.emplace_back(c.name);
    else
      journal.add(fmt::format("start {}", c.name));
    return {};
  }
  Status beginGroup() override {
    grouped = true;
    return {};
  }
  Status endGroup() override {
    grouped = false;
    for (const std::string &name : std::exchange(waiting, {}))
      journal.add("start " + name);
    return {};
  }
  Status status() override { return {}; }
  Expected<std::vector<std::string>> exchange(const std::string &text) override {
    return std::vector<std::string>{text, text};
  }
  void abort(const std::string &reason) override { journal.add("abort: " + reason); }
  int64_t sentBytes() const override { return 0; }

private:
  Journal &journal;
  bool grouped = false;
  std::vector<std::string> waiting;
};

class JournalDevice final : public ComputeDevice {
public:
  JournalDevice(Journal &journal, const StepPlan &plan) : journal(journal), plan(plan), host(hostDevice()) {}
  Expected<void *> allocate(int64_t bytes, std::string_view what) override { return host->allocate(bytes, what); }
  Status run(Lane, const KernelCall &call) override {
    if (call.kind == failing) return fail(Stage::Launch, "the device is gone");
    return {};
  }
  Status wait(Lane, int op) override { return journal.add("wait " + nameOf(op)), failure(failsToWait); }
  Status record(Lane, int op) override { return journal.add("record " + nameOf(op)), Status(); }
  Status toHost(void *to, const void *from, int64_t bytes) override { return host->toHost(to, from, bytes); }
  Status fromHost(void *to, const void *from, int64_t bytes) override { return host->fromHost(to, from, bytes); }
  Status clear(void *data, int64_t bytes) override { return host->clear(data, bytes); }
  Status synchronize() override { return {}; }

  OpKind failing = OpKind::Forward; ///< Forward is no kernel: none fails.
  bool failsToWait = false;

private:
  static Status failure(bool fails) {
    return fails ? Status(fail(Stage::Launch, "the device lost an event")) : Status();
  }
  std::string nameOf(int op) const { return plan.ops[static_cast<size_t>(op)].name; }

  Journal &journal;
  const StepPlan &plan;
  std::unique_ptr<ComputeDevice> host;
};

StepPlan flatPlan() {
  auto plan = buildPlan({{"weight", {40, 40}, 0.1}, {"gain", {40}, 0}}, {Strategy::Flat, 2});
  REQUIRE(plan);
  return std::move(*plan);
}

/// All that the host has to say in a step.
Status hostStep(StepExecutor &executor) {
  const StepPlan &plan = executor.plan();
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    if (plan.ops[i].lane != Lane::Host) continue;
    if (Status s = executor.waitFor(static_cast<int>(i)); !s) return s;
    if (Status s = executor.done(static_cast<int>(i)); !s) return s;
  }
  return {};
}

} // namespace

TEST_CASE("events follow the work of a group: they are recorded when the group has started, and told after that") {
  StepPlan plan = flatPlan();
  plan.buffers.push_back({"kv", Category::Communication, ElementType::F32, {20}});
  const int kv = static_cast<int>(plan.buffers.size()) - 1;
  for (bool isSend : {true, false}) {
    StepOp op{isSend ? "send" : "receive", isSend ? OpKind::Send : OpKind::Receive, Lane::Communication};
    op.uses = {{isSend ? Access::Read : Access::Write, {kv, isSend ? 0 : 10, 10, Part::Whole}}};
    op.peer = isSend ? 1 : -1;
    op.group = "hop";
    plan.ops.push_back(op);
  }
  Status good = checkPlan(plan);
  REQUIRE_MESSAGE(good, (good ? "" : good.error().text()));
  Journal journal;
  JournalTransport transport(journal);
  JournalDevice device(journal, plan);
  auto executor = StepExecutor::create(plan, transport, device);
  REQUIRE(executor);
  REQUIRE(hostStep(**executor));
  REQUIRE((*executor)->runCompute({}));
  REQUIRE((*executor)->drain());
  for (const char *op : {"send", "receive", "reduce.all"}) {
    CAPTURE(op);
    CHECK(journal.find(fmt::format("start {}", op)) >= 0);
    CHECK(journal.find(fmt::format("start {}", op)) < journal.find(fmt::format("record {}", op)));
  }
  CHECK(journal.find("start receive") < journal.find("record send"));
}

TEST_CASE("an error of the device is told to the other ranks, whichever call meets it") {
  for (OpKind kind : {OpKind::SquaredNorm, OpKind::AdamW}) {
    CAPTURE(toString(kind));
    const StepPlan plan = flatPlan();
    Journal journal;
    JournalTransport transport(journal);
    JournalDevice device(journal, plan);
    device.failing = kind;
    auto executor = StepExecutor::create(plan, transport, device);
    REQUIRE(executor);
    (void)hostStep(**executor);
    (void)(*executor)->runCompute({});
    REQUIRE_FALSE((*executor)->status());
    CHECK((*executor)->status().error().message == "the device is gone");
    CHECK(journal.find("abort: the device is gone") >= 0);
  }
  const StepPlan plan = flatPlan();
  Journal journal;
  JournalTransport transport(journal);
  JournalDevice device(journal, plan);
  device.failsToWait = true;
  auto executor = StepExecutor::create(plan, transport, device);
  REQUIRE(executor);
  (void)hostStep(**executor); // the communication thread may meet it first
  CHECK_FALSE((*executor)->runCompute({}));
  CHECK(journal.find("abort: the device lost an event") >= 0);
}
