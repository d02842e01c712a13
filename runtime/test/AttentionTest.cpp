// A problem's kernels as one: which, in what order, and what lies between them. CUDA is the fake driver's.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/Attention.h"
#include "FakeCudaLibrary.h"
#include "FakeGenerator.h"
#include "TemporaryFolder.h"
#include <algorithm>
#include <doctest/doctest.h>

using namespace tilewright;

namespace {

struct Fixture {
  TemporaryFolder folder;
  FakeGenerator generator;
  std::shared_ptr<Context> context;

  Fixture() {
    ContextOptions options;
    options.generator = &generator;
    options.cacheDir = folder.path;
    options.environment = Environment();
    options.environment->cudaDriver = options.environment->nvrtc = FAKE_CUDA_PATH;
    context = Context::create(options).value();
  }
};

Problem problemOf(Direction direction) {
  Problem problem;
  problem.batch = 2;
  problem.headsQ = problem.headsKV = 3;
  problem.seqQ = problem.seqKV = 100;
  problem.direction = direction;
  return problem;
}

Target targetNamed(const char *name) { return Target::parse(name).value(); }

std::string rolesOf(const Problem &problem, const char *target, std::string_view schedule) {
  const auto plans = choosePlans(problem, targetNamed(target), ScheduleOverrides::parse(schedule).value());
  REQUIRE(plans);
  std::string roles;
  for (const PlanChoice &choice : *plans)
    roles += (roles.empty() ? "" : " ") + std::string(toString(choice.plan.role));
  return roles;
}

} // namespace

TEST_CASE("the kernels of a problem, in launch order") {
  const Problem forward = problemOf(Direction::Forward), backward = problemOf(Direction::Backward);
  CHECK(rolesOf(forward, "sm_90a", "") == "forward");
  CHECK(rolesOf(forward, "cpu", "forward.split_kv=4") == "forward merge");
  CHECK(rolesOf(backward, "cpu", "forward.split_kv=4") == "forward merge delta dkv dq");
  CHECK(rolesOf(backward, "sm_90a", "backward=two_kernel") == "forward delta dkv dq");
  CHECK(rolesOf(backward, "sm_90a", "backward=fused") == "forward delta fused convert");
}

TEST_CASE("the forward of a problem with gradients is the kernel of the one without") {
  Fixture fixture;
  auto without = Attention::prepare(*fixture.context, problemOf(Direction::Forward), Target::hostCpu());
  auto with = Attention::prepare(*fixture.context, problemOf(Direction::Backward), Target::hostCpu());
  REQUIRE(without);
  REQUIRE(with);
  CHECK(with->kernels().front().sameCodeAs(without->kernels().front()));
  CHECK(with->kernels(Direction::Forward).size() == without->kernels().size());
  CHECK(without->kernels(Direction::Backward).empty());
  CHECK(with->kernels(Direction::Backward).size() == 3);
}

TEST_CASE("workspaces hold what kernels hand each other") {
  Fixture fixture;
  const Problem problem = problemOf(Direction::Backward);
  KernelArgs args = argsFor(problem);
  const auto split = ScheduleOverrides::parse("forward.split_kv=4").value();
  auto cpu = Attention::prepare(*fixture.context, problem, Target::hostCpu(), split);
  REQUIRE(cpu);
  CHECK(cpu->workspaceBytes(Direction::Forward, args) == partialsBytes(cpu->kernels().front().plan(), args));
  CHECK(cpu->workspaceBytes(Direction::Forward, args) > 0);
  const int64_t delta = (2 * 3 * 100 * 4 + 63) / 64 * 64;
  CHECK(cpu->workspaceBytes(Direction::Backward, args) == delta);
  auto gpu = Attention::prepare(*fixture.context, problem, targetNamed("sm_90a"));
  REQUIRE(gpu);
  CHECK(gpu->workspaceBytes(Direction::Forward, args) == 0);
  const auto fused = std::ranges::find_if(gpu->kernels(),
                                          [](const Kernel &kernel) { return kernel.plan().role == KernelRole::Fused; });
  REQUIRE(fused != gpu->kernels().end());
  CHECK(gpu->workspaceBytes(Direction::Backward, args) == delta + dqSumsBytes(fused->plan(), args));
  // Other lengths than the prepared ones: launches bring their own.
  args.seqQ = 1;
  CHECK(cpu->workspaceBytes(Direction::Backward, args) == 64);
}

TEST_CASE("sums that a kernel adds to are cleared before it, and nothing else is") {
  Fixture fixture;
  const Problem problem = problemOf(Direction::Backward);
  auto attention = Attention::prepare(*fixture.context, problem, targetNamed("sm_90a"));
  REQUIRE(attention);
  KernelArgs args = argsFor(problem);
  alignas(64) static char tensor[64];
  for (TensorRef *ref : {&args.q, &args.k, &args.v, &args.o, &args.dO, &args.dQ, &args.dK, &args.dV})
    *ref = {tensor, 64, 64, 64};
  args.lse = args.lseRest = reinterpret_cast<float *>(tensor);
  const int64_t bytes = attention->workspaceBytes(Direction::Backward, args), delta = 2 * 3 * 100 * 4;
  std::vector<char> memory(bytes + 128, 0x5a);
  char *workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  attention->useWorkspace(Direction::Backward, workspace, args);
  const int before = fakeCuda().launches;
  REQUIRE(attention->forward(nullptr, args));
  CHECK(fakeCuda().launches - before == 1);
  CHECK(std::ranges::count(memory, 0x5a) == static_cast<int64_t>(memory.size()));
  REQUIRE(attention->backward(nullptr, args));
  CHECK(fakeCuda().launches - before == 4);
  CHECK(std::all_of(workspace, workspace + delta, [](char byte) { return byte == 0x5a; }));
  CHECK(std::all_of(workspace + (delta + 63) / 64 * 64, workspace + bytes, [](char byte) { return byte == 0; }));
  CHECK(workspace[bytes] == 0x5a);
}

TEST_CASE("gradients of a problem that was prepared without are refused") {
  Fixture fixture;
  auto attention = Attention::prepare(*fixture.context, problemOf(Direction::Forward), Target::hostCpu());
  REQUIRE(attention);
  Status status = attention->backward(nullptr, argsFor(problemOf(Direction::Forward)));
  REQUIRE_FALSE(status);
  CHECK(status.error().hint.find("direction backward") != std::string::npos);
}

TEST_CASE("targets of a context: this processor with the context's threads, and each device's") {
  Fixture fixture;
  CHECK(fixture.context->hostTarget().threads == fixture.context->threads());
  CHECK(fixture.context->deviceTarget().value().name == "sm_90a");
  CHECK_FALSE(fixture.context->deviceTarget(7));
}
