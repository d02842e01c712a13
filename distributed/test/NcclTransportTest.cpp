#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/distributed/transport/NcclTransport.h"
#include "../../runtime/test/FakeCudaLibrary.h"
#include "FakeNccl.h"
#include "cuda/StepKernels.h"
#include "tilewright/Environment.h"
#include "tilewright/distributed/plan/PlanCost.h"
#include "tilewright/distributed/transport/Rendezvous.h"
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <functional>
#include <thread>
#include <unistd.h>

using namespace tilewright;
using namespace tilewright::dist;

namespace {

FakeNccl &fakeNccl() {
  static FakeNccl *controls = [] {
    void *library = dlopen(FAKE_NCCL_PATH, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<FakeNcclControls>(dlsym(library, "fakeNccl"))();
  }();
  return *controls;
}

std::shared_ptr<Context> fakeContext() {
  ContextOptions options;
  options.cacheDir = "";
  options.environment = Environment();
  options.environment->cudaDriver = options.environment->nvrtc = FAKE_CUDA_PATH;
  return Context::create(options).value();
}

using Body = std::function<void(Transport &, CudaDevice &)>;

/// Ranks as threads, each with a device of its own.
std::vector<std::string> runRanks(int ranks, std::chrono::milliseconds timeout, const Body &body) {
  Pretend devices(fakeCuda().devices, ranks);
  auto port = openRendezvousPort("127.0.0.1", 0);
  REQUIRE(port);
  const std::shared_ptr<Context> context = fakeContext();
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::string &error = errors[static_cast<size_t>(rank)];
      JobEnvironment job;
      job.rank = job.localRank = rank;
      job.worldSize = ranks;
      job.masterPort = port->port;
      job.token = "a token";
      job.joinTimeout = std::chrono::seconds(60);
      job.timeout = job.hangTimeout = timeout;
      if (rank == 0) job.rendezvousSocket = port->socket;
      auto device = CudaDevice::create(*context, rank);
      if (!device) {
        error = device.error().text();
        return;
      }
      auto transport = connectNccl(job, **device, {FAKE_NCCL_PATH});
      if (!transport) {
        error = transport.error().text();
        return;
      }
      body(**transport, **device);
      if (Status s = (*transport)->status(); !s) error = s.error().text();
    });
  for (std::thread &thread : threads)
    thread.join();
  return errors;
}

} // namespace

TEST_CASE("collectives and messages: values, bytes, memory allocated and registered once, all given back") {
  for (int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    std::atomic<int> wrong{0}, registered{0};
    fakeNccl().inProgress = 5; // a communicator that takes its time
    const auto errors = runRanks(ranks, std::chrono::seconds(20), [&](Transport &t, CudaDevice &) {
      const int64_t count = 12 * ranks;
      auto memory = t.allocate(count * 4, "gradients");
      if (!memory || !*memory) {
        ++wrong;
        return;
      }
      float *data = static_cast<float *>(*memory);
      const float all = static_cast<float>(ranks * (ranks + 1)) / 2, own = static_cast<float>(t.rank() + 1);
      int64_t expectedBytes = 0;
      auto run = [&](OpKind kind, int root = 0, int peer = 0) {
        if (!t.run({kind, data, count, ElementType::F32, root, peer, "x"})) ++wrong;
        expectedBytes += sentBytes(kind, count, 4, ranks, t.rank(), root);
      };
      auto expect = [&](int64_t begin, int64_t end, float value) {
        for (int64_t i = begin; i < end; ++i)
          if (data[i] != value) ++wrong;
      };
      std::fill_n(data, count, own);
      run(OpKind::AllReduce);
      expect(0, count, all);
      std::fill_n(data, count, own);
      run(OpKind::ReduceScatter);
      expect(12 * t.rank(), 12 * (t.rank() + 1), all);
      std::fill_n(data + 12 * t.rank(), 12, own);
      run(OpKind::AllGather);
      for (int r = 0; r < ranks; ++r)
        expect(12 * r, 12 * (r + 1), static_cast<float>(r + 1));
      std::fill_n(data, count, own);
      run(OpKind::Broadcast, ranks - 1);
      expect(0, count, static_cast<float>(ranks));
      if (ranks > 1) {
        std::fill_n(data, count, own);
        if (!t.beginGroup()) ++wrong;
        run(OpKind::Send, 0, 1);
        run(OpKind::Receive, 0, -1);
        if (!t.endGroup()) ++wrong;
        expect(0, count, static_cast<float>((t.rank() + ranks - 1) % ranks + 1));
      }
      if (t.sentBytes() != expectedBytes) ++wrong;
      auto texts = t.exchange(fmt::format("rank {}", t.rank()));
      if (!texts || texts->back() != fmt::format("rank {}", ranks - 1)) ++wrong;
      registered = fakeNccl().registered.load();
    });
    for (const std::string &error : errors)
      CHECK_MESSAGE(error.empty(), error);
    CHECK(wrong == 0);
    CHECK(registered >= 1);
    CHECK(fakeNccl().registered == 0);
    CHECK(fakeNccl().allocations == 0);
    CHECK(fakeNccl().communicators == 0);
    CHECK(fakeNccl().blocking == 0);
    CHECK(fakeNccl().aborts == 0);
  }
}

TEST_CASE("an error that NCCL reports while work is on its way aborts on all ranks, and every later call returns it") {
  const int before = fakeNccl().aborts;
  std::atomic<int> refused{0};
  const auto errors = runRanks(2, std::chrono::seconds(20), [&](Transport &t, CudaDevice &) {
    (void)t.exchange("both are connected");
    if (t.rank() == 0) fakeNccl().asyncError = 6;
    for (int i = 0; i < 500 && t.status(); ++i)
      usleep(10000);
    double x = 1;
    refused += !t.run({OpKind::AllReduce, &x, 1, ElementType::F64, 0, 0, "late"});
    refused += !t.exchange("");
  });
  fakeNccl().asyncError = 0;
  CHECK(refused == 4);
  CHECK(fakeNccl().aborts == before + 2);
  for (const std::string &error : errors)
    CHECK_MESSAGE(error.find("remote process exited") != std::string::npos, error);
}

TEST_CASE("work that never ends is an error that names the operation after the timeout; giving up tells the others") {
  auto errors = runRanks(2, std::chrono::milliseconds(400), [&](Transport &t, CudaDevice &) {
    double x = 1;
    Pretend busy(fakeCuda().busy, true);
    (void)t.run({OpKind::AllReduce, &x, 1, ElementType::F64, 0, 0, "gradients"});
    for (int i = 0; i < 500 && t.status(); ++i)
      usleep(10000);
  });
  for (const std::string &error : errors)
    CHECK_MESSAGE(error.find("all-reduce gradients (operation 0)") != std::string::npos, error);
  errors = runRanks(2, std::chrono::seconds(20), [&](Transport &t, CudaDevice &) {
    if (t.rank() == 1) t.abort("the data ended");
    for (int i = 0; i < 500 && t.status(); ++i)
      usleep(10000);
  });
  for (const std::string &error : errors)
    CHECK_MESSAGE(error.find("rank 1 gave up: the data ended") != std::string::npos, error);
}

TEST_CASE("a library that is missing, too old, or no NCCL is refused with what to do") {
  auto refusal = [](const std::string &path) {
    auto library = NcclOptions{path};
    auto device = CudaDevice::create(*fakeContext(), 0);
    REQUIRE(device);
    auto transport = connectNccl({}, **device, library);
    return transport ? std::string("connected") : transport.error().text();
  };
  CHECK(refusal("/none/libnccl.so").find("TILEWRIGHT_NCCL names /none/libnccl.so") != std::string::npos);
  CHECK(refusal(FAKE_CUDA_PATH).find("is not NCCL") != std::string::npos);
  Pretend old(fakeNccl().version, 21805);
  CHECK(refusal(FAKE_NCCL_PATH).find("NCCL 2.18.5, expected NCCL 2.19") != std::string::npos);
}

TEST_CASE("the step's kernels compile for every GPU family, without spilling") {
  ContextOptions options;
  options.cacheDir = "";
  options.refuseProblems = true; // spills
  auto context = Context::create(options);
  REQUIRE(context);
  if (!(*context)->nvrtc()) {
    MESSAGE("skipped: no NVRTC");
    return;
  }
  for (const char *architecture : {"sm_80", "sm_90a", "sm_120"}) {
    auto code = (*context)->compile(stepKernels(), architecture);
    REQUIRE_MESSAGE(code, (code ? "" : code.error().text() + code.error().log));
    CHECK(code->report.compile.registers > 0);
  }
}
