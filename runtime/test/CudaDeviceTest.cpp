// The runtime on a real GPU with the real driver and NVRTC.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "TemporaryFolder.h"
#include "tilewright/Context.h"
#include "tilewright/cuda/DeviceMemory.h"
#include "tilewright/cuda/Stream.h"
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <numeric>
#include <thread>

using namespace tilewright;
using namespace tilewright::cuda;

namespace {

bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Kernels that write the numbers below the batch into lse, each block its own and, where a launcher makes fewer blocks
/// than tiles, those a whole grid later.
class BlockNumbers : public CodeGenerator {
public:
  Expected<GeneratedCode> generate(const KernelPlan &plan) override {
    GeneratedCode code;
    code.symbol = plan.symbol();
    code.cudaSource =
        fmt::format("struct Args {{ char before[{}]; float *lse, *delta; int batch; char after[{}]; }};\n"
                    "extern \"C\" __global__ void {}(const __grid_constant__ Args args) {{\n"
                    "  extern __shared__ char shared[];\n"
                    "  shared[threadIdx.x] = 1;\n"
                    "  __syncthreads();\n"
                    "  if (threadIdx.x == 0)\n"
                    "    for (int i = blockIdx.x; i < args.batch; i += gridDim.x) args.lse[i] = i + 0.5f * shared[0];\n"
                    "}}\n",
                    offsetof(KernelArgs, lse), sizeof(KernelArgs) - offsetof(KernelArgs, headsQ), code.symbol);
    static_assert(offsetof(KernelArgs, batch) == offsetof(KernelArgs, lse) + 16);
    return code;
  }
  Expected<std::unique_ptr<HostCode>> loadHostCode(std::span<const char>, const std::string &) override {
    return fail(Stage::Load, "no CPU code here");
  }
};

struct Fixture {
  TemporaryFolder folder;
  BlockNumbers generator;
  std::vector<std::string> warnings;
  std::shared_ptr<Context> context;
  std::shared_ptr<const Device> device;

  Fixture() {
    ContextOptions options;
    options.generator = &generator;
    options.generatorId = "block numbers";
    options.cacheDir = folder.path + "/cache";
    options.log = [this](LogLevel level, std::string_view text) {
      if (level == LogLevel::Warning) warnings.emplace_back(text);
    };
    context = Context::create(options).value();
    if (auto opened = context->device())
      device = *opened;
    else
      MESSAGE("skipped: no device: ", opened.error().text());
  }

  KernelPlan plan(int dim) const {
    KernelPlan plan;
    plan.problem.dimQK = plan.problem.dimV = dim;
    plan.target = Target::forComputeCapability(device->info().major, device->info().minor).value();
    plan.schedule = Schedule::defaultFor(plan.problem, plan.target, plan.role);
    return plan;
  }
};

/// Arguments for `blocks` blocks, with lse and everything else in `memory`.
KernelArgs arguments(const DeviceMemory &memory, int blocks) {
  KernelArgs args;
  for (TensorRef *ref : {&args.q, &args.k, &args.v, &args.o})
    ref->data = memory.data();
  args.lse = static_cast<float *>(memory.data());
  args.batch = blocks, args.headsQ = args.headsKV = args.seqQ = args.seqKV = 1;
  return args;
}

void checkBlocks(const DeviceMemory &memory, int blocks) {
  std::vector<float> result(blocks);
  REQUIRE(memory.copyToHost(result.data(), blocks * sizeof(float)));
  for (int block = 0; block < blocks; ++block)
    REQUIRE(result[block] == block + 0.5f);
}

} // namespace

TEST_CASE("[gpu] memory round trips, and an error that names what is free") {
  Fixture fixture;
  if (!fixture.device) return;
  auto memory = DeviceMemory::allocate(fixture.device, 1 << 20);
  REQUIRE(memory);
  std::vector<char> in(1 << 20), out(1 << 20);
  std::iota(in.begin(), in.end(), 1);
  CHECK(memory->copyFromHost(in.data(), 1 << 20));
  CHECK(memory->copyToHost(out.data(), 1 << 20));
  CHECK(in == out);
  CHECK(memory->fill(3));
  CHECK(memory->copyToHost(out.data(), 10, 1000));
  CHECK(out[9] == 3);
  auto tooMuch = DeviceMemory::allocate(fixture.device, int64_t{1} << 50);
  REQUIRE_FALSE(tooMuch);
  CHECK(contains(tooMuch.error().message, "CUDA_ERROR_OUT_OF_MEMORY"));
  CHECK(contains(tooMuch.error().message, "bytes are free"));
}

TEST_CASE("[gpu] compile, load and launch on a stream, with all shared memory a plan asks for; then from disk") {
  Fixture fixture;
  if (!fixture.device) return;
  auto memory = DeviceMemory::allocate(fixture.device, 4000);
  auto stream = Stream::create(fixture.device);
  for (int dim : {64, 128, 256}) {
    auto kernel = fixture.context->prepare(fixture.plan(dim));
    REQUIRE_MESSAGE(kernel, kernel.error().text());
    REQUIRE(memory->fill(0, stream->handle()));
    Status launched = kernel->launch(stream->handle(), arguments(*memory, 1000));
    REQUIRE_MESSAGE(launched, launched.error().text());
    REQUIRE(stream->synchronize());
    checkBlocks(*memory, 1000);
  }
  auto compiled = fixture.context->compile(fixture.plan(64));
  CHECK(compiled->report.cacheHit());
  CHECK(fixture.warnings.empty());
}

TEST_CASE("[gpu] a cached cubin that the driver refuses is compiled anew") {
  Fixture fixture;
  if (!fixture.device) return;
  auto compiled = fixture.context->compile(fixture.plan(64));
  REQUIRE(compiled);
  compiled->entry.payload.assign(compiled->entry.payload.size(), 'x');
  REQUIRE(fixture.context->diskCache().publish(compiled->entry) != "");
  auto kernel = fixture.context->prepare(fixture.plan(64));
  REQUIRE_MESSAGE(kernel, kernel.error().text());
  CHECK_FALSE(kernel->report().cacheHit());
  CHECK(fixture.warnings.size() == 1);
  auto memory = DeviceMemory::allocate(fixture.device, 4000);
  REQUIRE(kernel->launch(nullptr, arguments(*memory, 1000)));
  checkBlocks(*memory, 1000);
}

TEST_CASE("[gpu] capture: ready kernels are recorded, new ones refused, another thread may prepare and destroy") {
  Fixture fixture;
  if (!fixture.device) return;
  auto driver = DynamicLibrary::open({"driver", fixture.device->driver().path(), "", {}, {}, ""}).value();
  auto beginCapture = reinterpret_cast<int (*)(void *, int)>(driver.symbol("cuStreamBeginCapture_v2"));
  auto endCapture = reinterpret_cast<int (*)(void *, void **)>(driver.symbol("cuStreamEndCapture"));
  auto getNodes = reinterpret_cast<int (*)(void *, void **, size_t *)>(driver.symbol("cuGraphGetNodes"));
  auto destroyGraph = reinterpret_cast<int (*)(void *)>(driver.symbol("cuGraphDestroy"));
  REQUIRE((beginCapture && endCapture && getNodes && destroyGraph));
  auto memory = DeviceMemory::allocate(fixture.device, 4000);
  auto kernel = fixture.context->prepare(fixture.plan(64));
  REQUIRE(kernel);
  for (int mode : {0, 1, 2}) { // global, thread-local, relaxed
    CAPTURE(mode);
    auto stream = Stream::create(fixture.device);
    REQUIRE(beginCapture(stream->handle(), mode) == 0);
    CHECK(kernel->launch(stream->handle(), arguments(*memory, 1000)));
    PrepareOptions options;
    options.stream = stream->handle();
    auto refused = fixture.context->prepare(fixture.plan(200 + 8 * mode), options);
    CHECK_FALSE(refused);
    std::thread([&] {
      CHECK(fixture.context->prepare(fixture.plan(72 + 8 * mode)));
      CHECK(fixture.context->dropUnused() >= 1);
      auto more = DeviceMemory::allocate(fixture.device, 100);
      CHECK(more);
    }).join();
    void *graph = nullptr;
    CHECK(endCapture(stream->handle(), &graph) == 0);
    REQUIRE(graph);
    size_t nodes = 0;
    CHECK(getNodes(graph, nullptr, &nodes) == 0);
    CHECK(nodes == 1);
    destroyGraph(graph);
  }
}
