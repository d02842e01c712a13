// Preparing CPU kernels: memory, disk, bundles, compiler, and many threads at once.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/Context.h"
#include "FakeGenerator.h"
#include "TemporaryFolder.h"
#include "tilewright/cache/CacheMaintenance.h"
#include <algorithm>
#include <barrier>
#include <doctest/doctest.h>

using namespace tilewright;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

KernelPlan cpuPlan(int number = 0) {
  KernelPlan plan;
  plan.problem.dimQK = plan.problem.dimV = 16 + number;
  plan.problem.dtype = DType::F32;
  plan.target = Target::hostCpu();
  plan.schedule.stages = plan.schedule.warps = 1;
  return plan;
}

struct Fixture {
  TemporaryFolder folder;
  FakeGenerator generator;
  std::vector<std::string> messages;
  std::mutex mutex;
  Environment environment;

  Fixture() { environment.threads = 3; }

  ContextOptions options() {
    ContextOptions options;
    options.generator = &generator;
    options.generatorId = "test";
    options.hostCompiler = "LLVM 22.1.8";
    options.cacheDir = folder.path + "/cache";
    options.environment = environment;
    options.log = [this](LogLevel level, std::string_view text) {
      std::lock_guard lock(mutex);
      if (level != LogLevel::Debug) messages.emplace_back(text);
    };
    return options;
  }
  std::shared_ptr<Context> context() { return Context::create(options()).value(); }
};

/// Runs a kernel over `blocks` blocks and checks that each was computed once.
void checkRun(const Kernel &kernel, int blocks) {
  std::vector<float> lse(blocks, 0.5f), q(16);
  KernelArgs args;
  for (TensorRef *ref : {&args.q, &args.k, &args.v, &args.o})
    ref->data = q.data();
  args.lse = lse.data();
  args.batch = blocks, args.headsQ = args.headsKV = args.seqQ = args.seqKV = 1;
  Status status = kernel.run(args);
  REQUIRE_MESSAGE(status, status.error().text());
  for (int block = 0; block < blocks; ++block)
    REQUIRE(lse[block] == block + 0.5f);
}

} // namespace

TEST_CASE("first compiled, then from memory, then from disk in another context") {
  Fixture fixture;
  auto context = fixture.context();
  auto first = context->prepare(cpuPlan());
  REQUIRE_MESSAGE(first, first.error().text());
  CHECK_FALSE(first->fromMemory());
  CHECK_FALSE(first->report().cacheHit());
  CHECK(first->report().symbol == cpuPlan().symbol());
  CHECK(first->report().scratchBytes == 1000);
  CHECK(first->report().compiler == "LLVM 22.1.8");
  CHECK(fs::exists(first->report().path));
  CHECK(std::ranges::any_of(fixture.messages, [](auto &m) { return contains(m, "compiling tw_"); }));
  checkRun(*first, 1);
  checkRun(*first, 1000);

  auto second = context->prepare(cpuPlan());
  CHECK(second->fromMemory());
  CHECK(second->sameCodeAs(*first));
  CHECK(fixture.generator.generated == 1);

  auto other = fixture.context()->prepare(cpuPlan());
  REQUIRE(other);
  CHECK((other->report().origin == KernelOrigin::Disk));
  CHECK(other->report().compileMs == 0);
  CHECK(other->report().key == first->report().key);
  CHECK(fixture.generator.generated == 1);
  checkRun(*other, 100); // Its context is gone.
}

TEST_CASE("run-time arguments do not make another kernel, constants, generator and compiler do") {
  Fixture fixture;
  auto context = fixture.context();
  REQUIRE(context->prepare(cpuPlan()));
  KernelPlan longer = cpuPlan();
  longer.problem.batch = 7, longer.problem.seqQ = longer.problem.seqKV = 333;
  CHECK(context->prepare(longer)->fromMemory());
  CHECK_FALSE(context->prepare(cpuPlan(1))->fromMemory());
  CHECK(fixture.generator.generated == 2);
  auto options = fixture.options();
  options.generatorId = "test 2";
  CHECK_FALSE(Context::create(options).value()->prepare(cpuPlan())->report().cacheHit());
  options.hostCompiler = "LLVM 23";
  CHECK_FALSE(Context::create(options).value()->prepare(cpuPlan())->report().cacheHit());
  CHECK(cacheInfo(fixture.folder.path + "/cache")->entries == 4);
}

TEST_CASE("compile() fills the cache without loading") {
  Fixture fixture;
  auto compiled = fixture.context()->compile(cpuPlan());
  REQUIRE(compiled);
  CHECK(compiled->report.path != "");
  CHECK(std::string_view(compiled->entry.payload.data(), 10) == "object of ");
  CHECK(fixture.generator.linked == 0);
  CHECK(fixture.context()->compile(cpuPlan())->report.cacheHit());
  CHECK(fixture.context()->prepare(cpuPlan())->report().cacheHit());
}

TEST_CASE("a cached object that does not link is replaced once") {
  Fixture fixture;
  REQUIRE(fixture.context()->prepare(cpuPlan()));
  fixture.messages.clear();
  fixture.generator.refusesObjects = true;
  auto kernel = fixture.context()->prepare(cpuPlan());
  REQUIRE_MESSAGE(kernel, kernel.error().text());
  CHECK_FALSE(kernel->report().cacheHit());
  CHECK(fixture.generator.generated == 2);
  CHECK(std::ranges::count_if(fixture.messages, [](auto &m) { return contains(m, "not an object; deleted"); }) == 1);
  CHECK(fixture.context()->prepare(cpuPlan())->report().cacheHit());
}

TEST_CASE("bundles serve without a compiler, and NO_COMPILE names the plan") {
  Fixture fixture;
  REQUIRE(fixture.context()->prepare(cpuPlan()));
  REQUIRE(cacheExport(fixture.folder.path + "/cache", fixture.folder.path + "/bundle").value() == 1);
  auto options = fixture.options();
  options.cacheDir = "";
  options.environment->bundles = {fixture.folder.path + "/bundle"};
  options.environment->noCompile = true;
  auto context = Context::create(options).value();
  auto kernel = context->prepare(cpuPlan());
  REQUIRE(kernel);
  CHECK((kernel->report().origin == KernelOrigin::Bundle));
  auto missing = context->prepare(cpuPlan(1));
  REQUIRE_FALSE(missing);
  CHECK(contains(missing.error().message, cpuPlan(1).symbol()));
  CHECK(contains(missing.error().message, "TILEWRIGHT_NO_COMPILE"));
  CHECK(missing.error().log == cpuPlan(1).canonicalText());
  CHECK(fixture.generator.generated == 1);

  options.environment->noCompile = false;
  options.generator = nullptr;
  auto bare = Context::create(options).value();
  CHECK(contains(bare->prepare(cpuPlan(1)).error().message, "carries no compiler"));
  CHECK(contains(bare->prepare(cpuPlan()).error().message, "carries no linker"));
}

TEST_CASE("a failure is reported to all, and tried again afterwards") {
  Fixture fixture;
  auto context = fixture.context();
  fixture.generator.fails = true;
  CHECK(contains(context->prepare(cpuPlan()).error().message, "the generator refuses"));
  fixture.generator.fails = false;
  CHECK(context->prepare(cpuPlan()));
}

TEST_CASE("without a usable disk everything works, with one warning") {
  Fixture fixture;
  auto options = fixture.options();
  options.cacheDir = std::nullopt; // And no HOME in the environment.
  auto context = Context::create(options).value();
  for (int i = 0; i < 3; ++i)
    REQUIRE(context->prepare(cpuPlan(i)));
  CHECK(std::ranges::count_if(fixture.messages, [](auto &m) { return contains(m, "no cache folder"); }) == 1);
  fixture.messages.clear();
  options.cacheDir = ""; // Asked for: no warning.
  REQUIRE(Context::create(options).value()->prepare(cpuPlan()));
  CHECK(std::ranges::count_if(fixture.messages, [](auto &m) { return contains(m, "cache"); }) == 0);
}

TEST_CASE("environment: unknown variables warn once, bad values are errors, dumps are written") {
  Fixture fixture;
  fixture.environment.unknown = {"TILEWRIGHT_TREADS"};
  fixture.environment.dumpDir = fixture.folder.path + "/dump";
  auto context = fixture.context();
  REQUIRE(context->prepare(cpuPlan()));
  CHECK(std::ranges::count_if(fixture.messages, [](auto &m) { return contains(m, "TILEWRIGHT_TREADS"); }) == 1);
  CHECK(readFile(fixture.environment.dumpDir + "/" + cpuPlan().symbol() + ".o").starts_with("object of "));
  CHECK(context->threads() == 3);
  setenv("TILEWRIGHT_THREADS", "none", 1);
  auto bad = Context::create({});
  unsetenv("TILEWRIGHT_THREADS");
  REQUIRE_FALSE(bad);
  CHECK(contains(bad.error().message, "TILEWRIGHT_THREADS"));
}

TEST_CASE("wrong uses are errors: stream launches of CPU kernels, levels this processor lacks") {
  Fixture fixture;
  auto context = fixture.context();
  auto kernel = context->prepare(cpuPlan());
  CHECK(contains(kernel->launch(nullptr, KernelArgs()).error().message, "is for the CPU"));
  KernelArgs negative;
  negative.batch = -1;
  CHECK_FALSE(kernel->run(negative));
  CHECK(kernel->run(KernelArgs())); // No blocks.
  KernelPlan future = cpuPlan();
  future.target.cpuLevel = "x86-64-v9";
  CHECK(contains(context->prepare(future).error().message, "x86-64-v9"));
}

TEST_CASE("24 threads: one compile of the same kernel, all get it") {
  Fixture fixture;
  fixture.generator.milliseconds = 20;
  for (int round = 0; round < 20; ++round) {
    auto context = fixture.context();
    cacheClear(fixture.folder.path + "/cache");
    const int before = fixture.generator.generated;
    std::barrier start(24);
    std::vector<std::optional<Kernel>> kernels(24);
    std::vector<std::thread> threads;
    for (int i = 0; i < 24; ++i)
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        if (auto kernel = context->prepare(cpuPlan())) kernels[i] = *kernel;
      });
    for (std::thread &thread : threads)
      thread.join();
    CHECK(fixture.generator.generated - before == 1);
    for (auto &kernel : kernels) {
      REQUIRE(kernel);
      CHECK(kernel->sameCodeAs(*kernels[0]));
    }
  }
  CHECK(fixture.generator.alive == 0);
}

TEST_CASE("24 threads: different kernels, runs of ready ones, destruction and dropping at once") {
  Fixture fixture;
  auto context = fixture.context();
  auto ready = context->prepare(cpuPlan(100));
  REQUIRE(ready);
  std::barrier start(24);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 24; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      for (int round = 0; round < 20; ++round) {
        auto kernel = context->prepare(cpuPlan((i + round) % 24));
        if (!kernel)
          ++failures;
        else
          checkRun(*kernel, 50);
        checkRun(*ready, 50);
        if (i % 8 == 0) context->dropUnused();
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  CHECK(failures == 0);
  context->dropUnused();
  CHECK(fixture.generator.alive == 1); // Only what a handle holds.
  CHECK(context->prepare(cpuPlan(3))->report().cacheHit());
}

TEST_CASE("a ready kernel is handed out while others compile") {
  Fixture fixture;
  auto context = fixture.context();
  REQUIRE(context->prepare(cpuPlan(0)));
  // The compiles below cannot end before this thread has had its hits.
  std::atomic<bool> hitsDone{false};
  struct Blocking : FakeGenerator {
    std::atomic<bool> &hitsDone;
    std::atomic<int> entered{0};
    explicit Blocking(std::atomic<bool> &done) : hitsDone(done) {}
    Expected<GeneratedCode> generate(const KernelPlan &plan) override {
      ++entered;
      while (!hitsDone)
        std::this_thread::yield();
      return FakeGenerator::generate(plan);
    }
  } blocking(hitsDone);
  auto options = fixture.options();
  options.generator = &blocking;
  auto busy = Context::create(options).value();
  REQUIRE(busy->prepare(cpuPlan(0))); // From disk.
  std::vector<std::thread> threads;
  for (int i = 1; i <= 4; ++i)
    threads.emplace_back([&, i] { CHECK(busy->prepare(cpuPlan(i))); });
  while (blocking.entered < 4)
    std::this_thread::yield();
  for (int i = 0; i < 1000; ++i)
    REQUIRE(busy->prepare(cpuPlan(0))->fromMemory());
  hitsDone = true;
  for (std::thread &thread : threads)
    thread.join();
}
