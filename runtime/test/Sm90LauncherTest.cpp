// What a launch of Hopper's forward says to its kernel, against the fake driver.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "FakeCudaLibrary.h"
#include "FakeGenerator.h"
#include "TemporaryFolder.h"
#include "tilewright/Context.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <set>

using namespace tilewright;

namespace {

KernelPlan forwardPlan(Order order, int group = 1) {
  KernelPlan plan;
  plan.problem.dimQK = plan.problem.dimV = 128;
  plan.problem.headsQ = 8 * group, plan.problem.headsKV = 8;
  plan.target = Target::parse("sm_90a").value();
  plan.schedule.tileQ = plan.schedule.tileKV = 128;
  plan.schedule.warps = 8;
  plan.schedule.order = order;
  return plan;
}

alignas(16) char q[16], k[16], v[16], o[16];
void *const kStream = reinterpret_cast<void *>(0x77), *const kOther = reinterpret_cast<void *>(0x78);

KernelArgs arguments(int batch, int length, int group = 1) {
  KernelArgs args;
  args.q.data = q, args.k.data = k, args.v.data = v, args.o.data = o;
  for (TensorRef *ref : {&args.q, &args.k, &args.v, &args.o})
    ref->rowStride = 8 * group * 128, ref->headStride = 128, ref->batchStride = length * ref->rowStride;
  args.lse = reinterpret_cast<float *>(o);
  args.batch = batch, args.headsQ = 8 * group, args.headsKV = 8, args.seqQ = args.seqKV = length;
  return args;
}

struct Fixture {
  TemporaryFolder folder;
  FakeGenerator generator;
  std::shared_ptr<Context> context;

  Fixture() {
    ContextOptions options;
    options.generator = &generator;
    options.generatorId = "test";
    options.cacheDir = folder.path + "/cache";
    Environment environment;
    environment.cudaDriver = environment.nvrtc = FAKE_CUDA_PATH;
    environment.threads = 1;
    options.environment = environment;
    context = Context::create(options).value();
  }
  Kernel kernel(Order order, int group = 1) {
    auto kernel = context->prepare(forwardPlan(order, group));
    REQUIRE_MESSAGE(kernel, kernel.error().text());
    return *kernel;
  }
};

LaunchCall call(const Kernel &kernel, void *stream, const KernelArgs &args) {
  auto call = kernel.launchCall(stream, args);
  REQUIRE_MESSAGE(call, call.error().text());
  REQUIRE(call->sm90);
  return *call;
}

int sectionHeads(const Kernel &kernel, int batch, int length, int group = 1) {
  return call(kernel, kStream, arguments(batch, length, group)).sm90->sectionHeads;
}

} // namespace

TEST_CASE("tensors and tiles") {
  Fixture fixture;
  const LaunchCall made = call(fixture.kernel(Order::Plain), kStream, arguments(3, 300));
  CHECK(made.sm90->q.opaque[0] == reinterpret_cast<uintptr_t>(q));
  CHECK(made.sm90->k.opaque[0] == reinterpret_cast<uintptr_t>(k));
  CHECK(made.sm90->v.opaque[0] == reinterpret_cast<uintptr_t>(v));
  CHECK(made.sm90->o.opaque[0] == reinterpret_cast<uintptr_t>(o));
  CHECK(made.sm90->tiles == 3);
  CHECK(made.sm90->columns == 24);
  CHECK(made.sm90->heads == 8);
  CHECK(made.sm90->tickets == nullptr);
  CHECK(made.blocks == 72);
  CHECK(call(fixture.kernel(Order::Plain), kStream, arguments(8, 1000)).blocks == 132); // as many as there are SMs
}

TEST_CASE("packed heads are an axis of their own, and parts of a tile are blocks") {
  Fixture fixture;
  KernelPlan plan = forwardPlan(Order::Plain, 3);
  plan.schedule.packHeads = true;
  plan.schedule.splitKV = 5;
  auto kernel = fixture.context->prepare(plan);
  REQUIRE_MESSAGE(kernel, kernel.error().text());
  KernelArgs args = arguments(2, 43, 3);
  alignas(64) static float states[16];
  args.partials = states;
  args.o.data = nullptr; // a split forward writes states alone
  const LaunchCall made = call(*kernel, kStream, args);
  CHECK(made.sm90->tiles == 2); // 42 queries of 3 heads fill 126 of 128 rows
  CHECK(made.sm90->heads == 8);
  CHECK(made.sm90->columns == 16);
  CHECK(made.blocks == 132); // of 160
  CHECK(made.sm90->o.opaque[0] == 0);
  const FakeCuda::TensorMap &map = fakeCuda().widestMap;
  CHECK(std::ranges::equal(map.extents, std::vector<uint64_t>{128, 3, 43, 8, 2}));
  CHECK(std::ranges::equal(map.strides, std::vector<uint64_t>{256, 3 * 8 * 256, 3 * 256, 43 * 3 * 8 * 256}));
  CHECK(std::ranges::equal(map.box, std::vector<uint32_t>{64, 3, 42, 1, 1}));
  CHECK(partialsBytes(plan, args) == 4 * 2 * 8 * 2 * 5 * 128 * 130);
}

TEST_CASE("a stream's launches share tickets, streams do not, captured launches have none") {
  Fixture fixture;
  const Kernel kernel = fixture.kernel(Order::LongestFirst);
  const KernelArgs args = arguments(8, 1000);
  const LaunchCall first = call(kernel, kStream, args);
  REQUIRE(first.sm90->tickets != nullptr);
  CHECK(first.blocks == 132);
  CHECK(call(kernel, kStream, args).sm90->tickets == first.sm90->tickets);
  std::set<uint32_t *> places = {first.sm90->tickets};
  for (uintptr_t stream = 0x100; stream < 0x100 + 127; ++stream)
    places.insert(call(kernel, reinterpret_cast<void *>(stream), args).sm90->tickets);
  CHECK(places.size() == 128);
  CHECK(places.count(nullptr) == 0);
  // All places are taken: the device deals the tiles out.
  const LaunchCall crowded = call(kernel, kOther, args);
  CHECK(crowded.sm90->tickets == nullptr);
  CHECK(crowded.blocks == 8 * 8 * 8);
  Pretend capture(fakeCuda().capturingStream, kStream);
  const LaunchCall captured = call(kernel, kStream, args);
  CHECK(captured.sm90->tickets == nullptr);
  CHECK(captured.blocks == 8 * 8 * 8);
}

TEST_CASE("sections: what L2 holds, on long sequences what streams together, in equal parts of whole groups") {
  Fixture fixture;
  const Kernel plain = fixture.kernel(Order::LongestFirst), grouped = fixture.kernel(Order::LongestFirst, 4);
  CHECK(sectionHeads(plain, 1, 512) == 8);    // all
  CHECK(sectionHeads(plain, 32, 512) == 128); // 256 heads of 256 KiB: 128 fill 32 MiB
  CHECK(sectionHeads(plain, 20, 512) == 80);  // 160 heads: two halves instead of 128 and 32
  CHECK(sectionHeads(plain, 8, 4096) == 32);  // 64 heads of 2 MiB: at most 33 stream
  CHECK(sectionHeads(plain, 5, 16384) == 20); // 40 heads
  CHECK(sectionHeads(plain, 1, 1 << 20) == 8);
  CHECK(sectionHeads(grouped, 1, 16384, 4) == 32); // 8 groups of 4: at most 33 / 4 groups
  CHECK(sectionHeads(grouped, 3, 16384, 4) == 32);
  CHECK(sectionHeads(grouped, 3, 512, 4) == 96);
}

TEST_CASE("strides that TMA cannot step are refused by name") {
  Fixture fixture;
  KernelArgs args = arguments(2, 300);
  args.k.headStride = 132;
  auto refused = fixture.kernel(Order::Plain).launchCall(kStream, args);
  REQUIRE_FALSE(refused);
  CHECK_MESSAGE(refused.error().message.find("k") == 0, refused.error().text());
}
