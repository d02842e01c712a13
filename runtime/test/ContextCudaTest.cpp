// Preparing and launching CUDA kernels, against the fake driver and NVRTC.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "FakeCudaLibrary.h"
#include "FakeGenerator.h"
#include "TemporaryFolder.h"
#include "tilewright/Context.h"
#include "tilewright/cache/CacheMaintenance.h"
#include <barrier>
#include <doctest/doctest.h>

using namespace tilewright;

namespace {

bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

KernelPlan cudaPlan(const char *target = "sm_90a", int number = 0) {
  KernelPlan plan;
  plan.problem.dimQK = plan.problem.dimV = 64 + 8 * number;
  plan.target = Target::parse(target).value();
  plan.schedule.tileQ = 128;
  plan.schedule.tileKV = 64;
  plan.schedule.warps = 4;
  return plan;
}

struct Fixture {
  TemporaryFolder folder;
  FakeGenerator generator;
  std::vector<std::string> warnings;
  Environment environment;

  Fixture() {
    environment.cudaDriver = environment.nvrtc = FAKE_CUDA_PATH;
    environment.threads = 1;
  }
  ContextOptions options() {
    ContextOptions options;
    options.generator = &generator;
    options.generatorId = "test";
    options.cacheDir = folder.path + "/cache";
    options.environment = environment;
    options.log = [this](LogLevel level, std::string_view text) {
      if (level == LogLevel::Warning) warnings.emplace_back(text);
    };
    return options;
  }
  std::shared_ptr<Context> context() { return Context::create(options()).value(); }
};

alignas(16) char memory[16];

KernelArgs arguments() {
  KernelArgs args;
  for (TensorRef *ref : {&args.q, &args.k, &args.v, &args.o})
    *ref = {memory, 512, 64, 512};
  args.lse = reinterpret_cast<float *>(memory);
  args.batch = 5, args.headsQ = args.headsKV = 1, args.seqQ = args.seqKV = 300;
  return args;
}

} // namespace

TEST_CASE("compile, load, launch; then from disk") {
  Fixture fixture;
  fixture.environment.dumpDir = fixture.folder.path + "/dump";
  auto context = fixture.context();
  const int compiles = fakeCuda().compiles;
  auto kernel = context->prepare(cudaPlan());
  REQUIRE_MESSAGE(kernel, kernel.error().text());
  const PrepareReport &report = kernel->report();
  CHECK(report.compile.registers == 168);
  CHECK(report.compiler == "NVRTC 13.0");
  KernelPlan plan = cudaPlan();
  CHECK(report.dynamicSharedBytes == plan.schedule.sharedBytes(plan.problem, plan.target, plan.role));
  CHECK(report.dynamicSharedBytes > 0);
  CHECK(fakeCuda().compiles - compiles == 1);
  for (const char *suffix : {".cu", ".cubin", ".log"})
    CHECK(readFile(fixture.environment.dumpDir + "/" + report.symbol + suffix) != "");

  REQUIRE(kernel->launch(reinterpret_cast<void *>(0x77), arguments()));
  const FakeCuda::Launch &launch = fakeCuda().lastLaunch;
  CHECK(launch.blocks == 3 * 5);
  CHECK(launch.threads == 256); // a consumer group and the producer
  CHECK(launch.sharedBytes == report.dynamicSharedBytes);
  CHECK(launch.batch == 5);
  const auto call = kernel->launchCall(nullptr, arguments()); // takes the function of the primary context
  REQUIRE(call);
  CHECK(call->blocks == launch.blocks);
  const cuda::Entry entry = call->entry;
  CHECK(entry.function == reinterpret_cast<void *>(0x400));
  CHECK(entry.threads == launch.threads);
  CHECK(entry.sharedBytes == launch.sharedBytes);
  const int launches = fakeCuda().launches;
  KernelArgs none = arguments();
  none.batch = 0;
  CHECK(kernel->launch(nullptr, none));
  CHECK(fakeCuda().launches == launches);
  KernelArgs bare = arguments();
  bare.q.data = nullptr;
  CHECK_FALSE(kernel->launch(nullptr, bare));
  CHECK(contains(kernel->run(arguments()).error().message, "is for sm_90a"));

  auto again = fixture.context()->prepare(cudaPlan());
  REQUIRE(again);
  CHECK((again->report().origin == KernelOrigin::Disk));
  CHECK(again->report().compile == report.compile);
  CHECK(fakeCuda().compiles - compiles == 1);
  auto compiled = fixture.context()->compile(cudaPlan());
  CHECK(compiled->report.cacheHit());
  CHECK(compiled->entry.sourceSha256 == sha256Hex(fixture.generator.generate(cudaPlan())->cudaSource));
}

TEST_CASE("options in order, then the host's, reach the compiler and the key") {
  Fixture fixture;
  auto plain = fixture.context()->compile(cudaPlan());
  REQUIRE(plain);
  std::string code(plain->entry.payload.begin(), plain->entry.payload.end());
  CHECK(code.ends_with(
      " --gpu-architecture=sm_90a --std=c++20 --ptxas-options=-v --modify-stack-limit=false --no-cache"));
  auto options = fixture.options();
  options.nvrtcOptions = {"-lineinfo"};
  auto lines = Context::create(options).value()->compile(cudaPlan());
  CHECK_FALSE(lines->report.cacheHit());
  CHECK(std::string(lines->entry.payload.begin(), lines->entry.payload.end()).ends_with("--no-cache -lineinfo"));
}

TEST_CASE("another compiler version is another kernel; without a compiler the cached ones serve") {
  Fixture fixture;
  REQUIRE(fixture.context()->prepare(cudaPlan()));
  {
    Pretend newer(fakeCuda().nvrtcMinor, 1);
    CHECK_FALSE(fixture.context()->prepare(cudaPlan())->report().cacheHit());
  }
  fixture.environment.nvrtc = "/nowhere/libnvrtc.so.13";
  auto context = fixture.context();
  CHECK(context->prepare(cudaPlan())->report().cacheHit());
  CHECK(contains(context->prepare(cudaPlan("sm_90a", 1)).error().message, "TILEWRIGHT_NVRTC"));
}

TEST_CASE("a kernel that the driver refuses is compiled once more, then reported") {
  Fixture fixture;
  REQUIRE(fixture.context()->prepare(cudaPlan()));
  const int compiles = fakeCuda().compiles;
  fakeCuda().failLoads = 1;
  auto healed = fixture.context()->prepare(cudaPlan());
  REQUIRE_MESSAGE(healed, healed.error().text());
  CHECK_FALSE(healed->report().cacheHit());
  CHECK(fakeCuda().compiles - compiles == 1);
  REQUIRE(fixture.warnings.size() == 1);
  CHECK(contains(fixture.warnings[0], "CUDA_ERROR_INVALID_IMAGE"));
  CHECK(fixture.context()->prepare(cudaPlan())->report().cacheHit());
  fakeCuda().failLoads = 2;
  auto broken = fixture.context()->prepare(cudaPlan());
  CHECK(fakeCuda().failLoads == 0);
  REQUIRE_FALSE(broken);
  CHECK(contains(broken.error().message, "load kernel"));
}

TEST_CASE("nothing new is prepared for a stream that captures, ready kernels are") {
  Fixture fixture;
  auto context = fixture.context();
  REQUIRE(context->prepare(cudaPlan()));
  void *stream = reinterpret_cast<void *>(0x99);
  Pretend capturing(fakeCuda().capturingStream, stream);
  const int compiles = fakeCuda().compiles, loads = fakeCuda().loads;
  PrepareOptions options;
  options.stream = stream;
  auto kernel = context->prepare(cudaPlan(), options);
  REQUIRE(kernel);
  CHECK(kernel->launch(stream, arguments()));
  auto refused = context->prepare(cudaPlan("sm_90a", 1), options);
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "its stream is being captured"));
  CHECK(fakeCuda().compiles == compiles);
  CHECK(fakeCuda().loads == loads);
  options.stream = reinterpret_cast<void *>(0x98);
  CHECK(context->prepare(cudaPlan("sm_90a", 1), options));
}

TEST_CASE("devices that cannot run the target are told apart by number") {
  Fixture fixture;
  auto context = fixture.context();
  auto code = [&](const char *target) { return context->prepare(cudaPlan(target)).has_value(); };
  CHECK(code("sm_90a"));
  CHECK_FALSE(code("sm_80"));
  CHECK_FALSE(code("sm_120"));
  {
    Pretend major(fakeCuda().major, 8);
    Pretend minor(fakeCuda().minor, 6);
    auto ampere = fixture.context();
    CHECK(ampere->prepare(cudaPlan("sm_80")));
    CHECK(ampere->prepare(cudaPlan("sm_86")));
    CHECK(contains(ampere->prepare(cudaPlan("sm_89")).error().message, "has compute capability 8.6"));
  }
  PrepareOptions second;
  second.device = 1;
  CHECK(contains(context->prepare(cudaPlan(), second).error().message, "device 1 does not exist"));
  Pretend two(fakeCuda().devices, 2);
  auto both = fixture.context();
  auto a = both->prepare(cudaPlan()), b = both->prepare(cudaPlan(), second);
  REQUIRE((a && b));
  CHECK_FALSE(a->sameCodeAs(*b));
}

TEST_CASE("findings of the compiler warn once, or refuse when asked to") {
  Fixture fixture;
  Pretend log(fakeCuda().extraLog, "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async is serialized\n");
  auto context = fixture.context();
  REQUIRE(context->prepare(cudaPlan()));
  REQUIRE(context->compile(cudaPlan()));
  REQUIRE(fixture.warnings.size() == 1);
  CHECK(contains(fixture.warnings[0], "C7510"));
  auto options = fixture.options();
  options.refuseProblems = true;
  auto strict = Context::create(options).value();
  CHECK(contains(strict->prepare(cudaPlan()).error().message, "C7510")); // From the cache.
  CHECK(contains(strict->prepare(cudaPlan("sm_90a", 1)).error().message, "C7510"));
}

TEST_CASE("a machine without a driver") {
  Fixture fixture;
  fixture.environment.cudaDriver = "/nowhere/libcuda.so.1";
  auto context = fixture.context();
  CHECK(contains(context->prepare(cudaPlan()).error().message, "TILEWRIGHT_CUDA_DRIVER"));
  CHECK(context->compile(cudaPlan())); // Needs none.
}

TEST_CASE("24 threads compile, load and launch at once") {
  Fixture fixture;
  Pretend slow(fakeCuda().compileMilliseconds, 5);
  auto context = fixture.context();
  const int compiles = fakeCuda().compiles;
  std::barrier start(24);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  Pretend many(fakeCuda().devices, 2); // Keeps the fake from recording launches of racing threads.
  fakeCuda().launches = 1;
  for (int i = 0; i < 24; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      for (int round = 0; round < 20; ++round) {
        auto kernel = context->prepare(cudaPlan("sm_90a", (i * round) % 12));
        failures += !kernel || !kernel->launch(nullptr, arguments());
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  CHECK(failures == 0);
  CHECK(fakeCuda().compiles - compiles == 12);
  CHECK(context->dropUnused() == 12);
  CHECK(fakeCuda().loads == fakeCuda().unloads);
}

TEST_CASE("text of one's own: compiled once, loaded once for all its kernels, then from disk; no generator is needed") {
  Fixture fixture;
  fixture.environment.noCompile = false;
  auto options = [&] {
    ContextOptions made = fixture.options();
    made.generator = nullptr;
    return made;
  };
  CudaSource source{"two", "the text of two kernels", {"tw_train_one", "tw_train_other"}, 64};
  const int compiles = fakeCuda().compiles, loads = fakeCuda().loads, unloads = fakeCuda().unloads;
  for (KernelOrigin origin : {KernelOrigin::Compiled, KernelOrigin::Disk}) {
    auto kernels = Context::create(options()).value()->prepare(source);
    REQUIRE_MESSAGE(kernels, kernels.error().text());
    CHECK((kernels->report().origin == origin));
    for (const std::string &symbol : source.symbols)
      CHECK(kernels->launch(symbol, nullptr, 3, 7));
    CHECK(kernels->launch("tw_train_one", nullptr, 0, 7));
  }
  CHECK(fakeCuda().compiles - compiles == 1);
  CHECK(fakeCuda().loads - loads == 2);
  CHECK(fakeCuda().unloads - unloads == 2);

  // The text is the key, not the program that brings it; another text or list of symbols is another kernel.
  ContextOptions other = options();
  other.generatorId = "another program";
  CHECK((Context::create(other).value()->compile(source, "sm_90a")->report.origin == KernelOrigin::Disk));
  CudaSource changed = source;
  changed.text += " ";
  CHECK((Context::create(other).value()->compile(changed, "sm_90a")->report.origin == KernelOrigin::Compiled));
  changed = source;
  changed.symbols.pop_back();
  CHECK((Context::create(other).value()->compile(changed, "sm_90a")->report.origin == KernelOrigin::Compiled));

  // What is in the cache but does not load is compiled anew.
  fakeCuda().failLoads = 1;
  auto again = Context::create(options()).value()->prepare(source);
  REQUIRE(again);
  CHECK((again->report().origin == KernelOrigin::Compiled));
  CHECK(fixture.warnings.size() == 1);

  fixture.environment.noCompile = true;
  changed.text = "in no cache";
  auto refused = Context::create(options()).value()->prepare(changed);
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "kernel two for sm_90a is in no cache"));
}
