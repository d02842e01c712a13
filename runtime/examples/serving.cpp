// A serving loop: kernels are prewarmed for the batches that may come; a request only launches. Where there is a GPU,
// each batch's launches become a CUDA graph.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tilewright/Attention.h>
#include <tilewright/BuiltInCompiler.h>
#include <tilewright/cuda/DeviceMemory.h>
#include <tilewright/cuda/Graph.h>
#include <vector>

using namespace tilewright;

constexpr int64_t kHeads = 8, kHeadsKV = 2, kDim = 64, kCached = 1024, kMostBatch = 8;
constexpr uint16_t kOne = 0x3f80; // 1 as bf16

/// The value, or the end of the program with what is wrong and what to do.
template <class T> T require(Expected<T> result) {
  if (!result) std::fprintf(stderr, "%s\n", result.error().text().c_str()), std::exit(1);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

int main() {
  ContextOptions options = optionsWithCompiler();
  options.log = [](LogLevel level, std::string_view text) {
    if (level != LogLevel::Debug) std::printf("%.*s\n", static_cast<int>(text.size()), text.data());
  };
  std::shared_ptr<Context> context = require(Context::create(options));
  Expected<std::shared_ptr<const cuda::Device>> gpu = context->device();
  const Target target = gpu ? require(context->deviceTarget()) : context->hostTarget();

  // One block of memory, all ones: caches of K and V, Q, and room for O, LSE and scratch. Every O is ones then.
  const int64_t cache = kMostBatch * kCached * kHeadsKV * kDim, rows = kMostBatch * kHeads * kDim, scratch = 1 << 24;
  std::vector<uint16_t> host(2 * cache + 4 * rows + scratch, kOne);
  const auto bytes = static_cast<int64_t>(host.size() * sizeof(uint16_t));
  cuda::DeviceMemory memory = gpu ? require(cuda::DeviceMemory::allocate(*gpu, bytes)) : cuda::DeviceMemory();
  cuda::Stream stream = gpu ? require(cuda::Stream::create(*gpu)) : cuda::Stream();
  if (gpu) require(memory.copyFromHost(host.data(), bytes, 0, stream.handle()));
  auto *base = gpu ? static_cast<uint16_t *>(memory.data()) : host.data();
  base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64 / sizeof(uint16_t);

  struct Ready {
    Attention attention;
    KernelArgs args;
    cuda::Graph graph;
  };
  std::map<int64_t, Ready> prewarmed;
  for (int64_t batch = 1; batch <= kMostBatch; batch *= 2) {
    Problem problem;
    problem.batch = batch, problem.headsQ = kHeads, problem.headsKV = kHeadsKV, problem.seqKV = kCached;
    Ready ready{require(Attention::prepare(*context, problem, target)), argsFor(problem), {}};
    ready.args.k = {base, kCached * kHeadsKV * kDim, kDim, kHeadsKV * kDim};
    ready.args.v = {base + cache, kCached * kHeadsKV * kDim, kDim, kHeadsKV * kDim};
    ready.args.q = {base + 2 * cache, kHeads * kDim, kDim, kHeads * kDim};
    ready.args.o = {base + 2 * cache + rows, kHeads * kDim, kDim, kHeads * kDim};
    ready.args.lse = reinterpret_cast<float *>(base + 2 * cache + 2 * rows);
    if (ready.attention.workspaceBytes(Direction::Forward, ready.args) > 2 * scratch - 64) return 1;
    ready.attention.useWorkspace(Direction::Forward, base + 2 * cache + 3 * rows, ready.args);
    auto launch = [&] { return ready.attention.forward(stream.handle(), ready.args); };
    require(launch());
    if (gpu) ready.graph = require(cuda::Graph::capture(*gpu, stream, launch));
    prewarmed.emplace(batch, std::move(ready));
  }

  const auto start = std::chrono::steady_clock::now();
  constexpr int kRequests = 200;
  for (int request = 0; request < kRequests; ++request) {
    const Ready &ready = prewarmed.at(int64_t{1} << request % 4);
    require(gpu ? ready.graph.launch(stream) : ready.attention.forward(nullptr, ready.args));
  }
  if (gpu) require(stream.synchronize());
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  if (gpu) require(memory.copyToHost(host.data(), bytes));
  const uint16_t *o = (gpu ? host.data() : base) + 2 * cache + rows;
  std::printf("%d requests on %s, %.1f us each, o[0] is %s\n", kRequests, target.name.c_str(), took.count() / kRequests,
              *o == kOne ? "1, as it should be" : "wrong");
  return *o == kOne ? 0 : 1;
}
