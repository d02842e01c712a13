// A host's streams, captures, devices and contexts on a real GPU: attention goes where the host says and nowhere else.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "TemporaryFolder.h"
#include "tilewright/Attention.h"
#include "tilewright/BuiltInCompiler.h"
#include "tilewright/cuda/DeviceMemory.h"
#include "tilewright/cuda/Graph.h"
#include <atomic>
#include <doctest/doctest.h>
#include <thread>

using namespace tilewright;
using namespace tilewright::cuda;

namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kRows = 256, kDim = 64, kElements = kBatch * kHeads * kRows * kDim;
constexpr int64_t kTensorBytes = kElements * 2, kLseBytes = kBatch * kHeads * kRows * 4, kWorkspace = 8 << 20;

/// The argument of the two kernels below.
struct HostKernelArgs {
  unsigned long long nanoseconds;
  unsigned short *out;
  unsigned seed;
  int count;
};

const char *const kHostKernels = R"(
struct Args { unsigned long long nanoseconds; unsigned short *out; unsigned seed; int count; };
extern "C" __global__ void spin(const __grid_constant__ Args args) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < args.nanoseconds);
}
extern "C" __global__ void write(const __grid_constant__ Args args) { // bf16 values between 0.5 and 2, either sign
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < args.count; i += gridDim.x * blockDim.x) {
    unsigned hash = (i + args.seed * 0x9e3779b9u) * 0x85ebca6bu;
    hash ^= hash >> 15;
    args.out[i] = (unsigned short)(0x3f00 + (hash & 0xff) + ((hash >> 9 & 1) << 15));
  }
}
)";

Problem problemOf(Direction direction, bool causal = true) {
  Problem problem;
  problem.batch = kBatch;
  problem.headsQ = problem.headsKV = kHeads;
  problem.seqQ = problem.seqKV = kRows;
  problem.direction = direction;
  problem.causal = causal;
  return problem;
}

/// A device with a context, the host's own kernels, and memory for q, k, v, o, lse, dO, dQ, dK, dV and scratch.
struct Host {
  TemporaryFolder folder;
  std::shared_ptr<Context> context;
  std::shared_ptr<const Device> device;
  std::unique_ptr<Module> spinner, writer;
  DeviceMemory memory, spare;
  KernelArgs args;
  Target target;
  int ordinal;

  explicit Host(int ordinal = 0) : ordinal(ordinal) {
    ContextOptions options = optionsWithCompiler();
    options.cacheDir = folder.path;
    context = Context::create(options).value();
    auto opened = context->device(ordinal);
    if (!opened) {
      MESSAGE("skipped: no device: ", opened.error().text());
      return;
    }
    device = *opened;
    target = context->deviceTarget(ordinal).value();
    spinner = load("spin", 1);
    writer = load("write", 256);
    memory = DeviceMemory::allocate(device, 8 * kTensorBytes + 3 * kLseBytes + kWorkspace).value();
    spare = DeviceMemory::allocate(device, kTensorBytes).value();
    REQUIRE(memory.fill(0));
    char *at = static_cast<char *>(memory.data());
    args = argsFor(problemOf(Direction::Forward));
    for (TensorRef *ref : {&args.q, &args.k, &args.v, &args.o, &args.dO, &args.dQ, &args.dK, &args.dV}) {
      *ref = {at, kRows * kHeads * kDim, kDim, kHeads * kDim};
      at += kTensorBytes;
    }
    for (float **rows : {&args.lse, &args.lseRest}) {
      *rows = reinterpret_cast<float *>(at);
      at += kLseBytes;
    }
    workspace = at;
    REQUIRE(device->synchronize());
  }

  std::unique_ptr<Module> load(const std::string &symbol, int threads) {
    auto nvrtc = context->nvrtc();
    REQUIRE(nvrtc);
    auto compiled = (*nvrtc)->compile({kHostKernels, symbol, target.name, {}, NvrtcOutput::Cubin, {}});
    REQUIRE(compiled);
    auto module = Module::load(device, compiled->code, {symbol, 0, threads, (*nvrtc)->version().cudaVersion()});
    REQUIRE(module);
    return std::move(*module);
  }

  Expected<Attention> prepare(Direction direction, bool causal = true, void *stream = nullptr) {
    return Attention::prepare(*context, problemOf(direction, causal), target, {},
                              {.device = ordinal, .stream = stream});
  }
  Attention ready(Direction direction) {
    auto attention = prepare(direction);
    REQUIRE(attention);
    for (Direction each : {Direction::Forward, Direction::Backward}) {
      REQUIRE(attention->workspaceBytes(each, args) <= kWorkspace);
      attention->useWorkspace(each, workspace, args);
    }
    return *attention;
  }

  Status spin(void *stream, unsigned long long milliseconds) const {
    const HostKernelArgs argument{milliseconds * 1000000, nullptr, 0, 0};
    return spinner->launch(stream, 1, &argument);
  }
  /// New q, k, v and dO.
  Status writeInputs(void *stream, unsigned seed) const {
    for (const TensorRef *ref : {&args.q, &args.k, &args.v, &args.dO}) {
      const HostKernelArgs argument{0, static_cast<unsigned short *>(ref->data), ++seed, static_cast<int>(kElements)};
      if (Status status = writer->launch(stream, 64, &argument); !status) return status;
    }
    return {};
  }
  std::vector<uint16_t> read(const TensorRef &ref) const {
    std::vector<uint16_t> values(kElements);
    const int64_t offset = static_cast<char *>(ref.data) - static_cast<char *>(memory.data());
    REQUIRE(memory.copyToHost(values.data(), kTensorBytes, offset));
    return values;
  }

  void *workspace = nullptr;
};

bool anyWritten(const std::vector<uint16_t> &values) {
  return std::any_of(values.begin(), values.end(), [](uint16_t value) { return value != 0; });
}

} // namespace

TEST_CASE("[gpu] the caller's stream orders attention after what wrote its inputs, 100 times of 100") {
  Host host;
  if (!host.device) return;
  const Attention attention = host.ready(Direction::Backward);
  Stream stream = Stream::create(host.device).value();
  Event queued = Event::create(host.device).value(), legacy = Event::create(host.device).value();
  int right = 0;
  for (unsigned turn = 0; turn < 100; ++turn) {
    // Straight, with every step awaited.
    REQUIRE(host.writeInputs(nullptr, 1000 * turn));
    REQUIRE(attention.forward(nullptr, host.args));
    REQUIRE(host.device->synchronize());
    const std::vector<uint16_t> expected = host.read(host.args.o);
    REQUIRE(host.memory.fill(0));
    REQUIRE(host.device->synchronize());

    // Behind a spin, nothing awaited. Had the call waited for the device, the spin would be over when it returns.
    REQUIRE(host.spin(stream.handle(), 20));
    REQUIRE(queued.record(stream.handle()));
    REQUIRE(host.writeInputs(stream.handle(), 1000 * turn));
    REQUIRE(attention.forward(stream.handle(), host.args));
    REQUIRE(attention.backward(stream.handle(), host.args));
    CHECK_FALSE(queued.isReached().value());
    // The legacy default stream is busy for longer: had anything gone there, the stream would wait for it.
    REQUIRE(host.spin(nullptr, turn % 20 ? 0 : 300));
    REQUIRE(legacy.record(nullptr));
    REQUIRE(stream.synchronize());
    if (turn % 20 == 0) CHECK_FALSE(legacy.isReached().value());
    right += host.read(host.args.o) == expected && anyWritten(expected) && anyWritten(host.read(host.args.dQ));
    REQUIRE(host.device->synchronize());
  }
  CHECK(right == 100);
}

TEST_CASE("[gpu] a captured call replays with inputs changed in place, in all three capture modes") {
  Host host;
  if (!host.device) return;
  const Attention attention = host.ready(Direction::Backward);
  size_t sums = 0; // cleared by a node of their own
  for (const Kernel &kernel : attention.kernels())
    sums += kernel.plan().role == KernelRole::Fused;
  Stream stream = Stream::create(host.device).value();
  for (CaptureMode mode : {CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed}) {
    CAPTURE(static_cast<int>(mode));
    auto graph = Graph::capture(
        host.device, stream,
        [&] {
          Status status = attention.forward(stream.handle(), host.args);
          return status ? attention.backward(stream.handle(), host.args) : status;
        },
        mode);
    REQUIRE(graph);
    CHECK(graph->nodes() == attention.kernels().size() + sums);
    REQUIRE(host.writeInputs(stream.handle(), 77 + static_cast<unsigned>(mode)));
    REQUIRE(attention.forward(stream.handle(), host.args));
    REQUIRE(stream.synchronize());
    const auto direct = host.read(host.args.o);
    for (const TensorRef *ref : {&host.args.o, &host.args.dK})
      REQUIRE(fill(*host.device, ref->data, 0, kTensorBytes, stream.handle()));
    REQUIRE(graph->launch(stream));
    REQUIRE(stream.synchronize());
    CHECK(host.read(host.args.o) == direct);
    CHECK(anyWritten(direct));
    CHECK(anyWritten(host.read(host.args.dK)));
  }
}

TEST_CASE("[gpu] a first use inside a capture is an error, and the stream works afterwards") {
  Host host;
  if (!host.device) return;
  Stream stream = Stream::create(host.device).value();
  for (CaptureMode mode : {CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed}) {
    auto graph = Graph::capture(
        host.device, stream,
        [&]() -> Status {
          auto attention = host.prepare(Direction::Forward, false, stream.handle());
          if (!attention) return tl::unexpected(attention.error());
          return attention->forward(stream.handle(), host.args);
        },
        mode);
    REQUIRE_FALSE(graph);
    CHECK((graph.error().stage == Stage::Compile));
    CHECK(graph.error().message.find("being captured") != std::string::npos);
    CHECK(graph.error().hint.find("before the capture") != std::string::npos);
    REQUIRE(host.writeInputs(stream.handle(), 5));
    REQUIRE(stream.synchronize());
  }
  auto attention = host.prepare(Direction::Forward, false, stream.handle());
  REQUIRE(attention);
  CHECK(attention->forward(stream.handle(), host.args));
  CHECK(stream.synchronize());
}

TEST_CASE("[gpu] while one stream captures, another thread prepares, launches, drops: the capture stays valid") {
  Host host;
  if (!host.device) return;
  const Attention attention = host.ready(Direction::Forward);
  Stream stream = Stream::create(host.device).value(), other = Stream::create(host.device).value();
  int dim = 72;
  for (CaptureMode mode : {CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed}) {
    CAPTURE(static_cast<int>(mode));
    std::atomic<int> prepared{0}, dropped{0};
    auto graph = Graph::capture(
        host.device, stream,
        [&] {
          Status before = attention.forward(stream.handle(), host.args);
          std::thread([&] {
            Problem problem = problemOf(Direction::Forward);
            problem.dimQK = problem.dimV = dim += 8;
            prepared += Attention::prepare(*host.context, problem, host.target).has_value();
            // A launch there may be refused while a global capture goes on, but then as an error, not as its end.
            KernelArgs elsewhere = host.args;
            elsewhere.o.data = host.spare.data();
            (void)attention.forward(other.handle(), elsewhere);
            dropped += static_cast<int>(host.context->dropUnused());
          }).join();
          return before ? attention.forward(stream.handle(), host.args) : before;
        },
        mode);
    REQUIRE_MESSAGE(graph, graph.error().text());
    CHECK(graph->nodes() == 2);
    CHECK(prepared == 1);
    CHECK(dropped >= 1);
    CHECK(graph->launch(stream));
    CHECK(stream.synchronize());
    CHECK(other.synchronize());
  }
}

TEST_CASE("[gpu] two contexts on one device, and kernels that outlive theirs") {
  Host first;
  if (!first.device) return;
  std::optional<Attention> outlives;
  {
    Host second;
    outlives = second.ready(Direction::Forward);
    REQUIRE(outlives->forward(nullptr, second.args));
    REQUIRE(second.device->synchronize());
  }
  const Attention attention = first.ready(Direction::Forward);
  REQUIRE(first.writeInputs(nullptr, 3));
  REQUIRE(attention.forward(nullptr, first.args));
  REQUIRE(first.device->synchronize());
  const auto expected = first.read(first.args.o);
  REQUIRE(fill(*first.device, first.args.o.data, 0, kTensorBytes, nullptr));
  CHECK(outlives->forward(nullptr, first.args));
  REQUIRE(first.device->synchronize());
  CHECK(first.read(first.args.o) == expected);
}

TEST_CASE("[gpu] two devices in one process, whichever is current") {
  Host first;
  if (!first.device) return;
  if (first.device->driver().devices().size() < 2) {
    MESSAGE("skipped: no device beside the first");
    return;
  }
  Host second(1);
  std::vector<uint16_t> results[2];
  for (int turn : {0, 1}) {
    Host &host = turn ? second : first;
    const Attention attention = host.ready(Direction::Forward);
    // The other device's context is current: the launch must not care.
    Host &bystander = turn ? first : second;
    CurrentContext current(bystander.device->api(), bystander.device->context(), bystander.device->handle());
    REQUIRE(host.writeInputs(nullptr, 9));
    REQUIRE(attention.forward(nullptr, host.args));
    REQUIRE(host.device->synchronize());
    results[turn] = host.read(host.args.o);
  }
  CHECK(anyWritten(results[0]));
  CHECK(results[0] == results[1]);
}
