// First calls from many threads of a host, with the real compiler: round after round, none may crash, compile twice
// what is the same, compute anything wrong or leave memory behind.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "TemporaryFolder.h"
#include "tilewright/Attention.h"
#include "tilewright/Compiler.h"
#include "tilewright/tensor/Tensor.h"
#include <atomic>
#include <barrier>
#include <doctest/doctest.h>
#include <malloc.h>
#include <thread>
#include <unistd.h>

using namespace tilewright;

namespace {

constexpr int kThreads = 24, kRounds = 20;

/// The compiler, with its calls counted.
class CountingCompiler : public CodeGenerator {
public:
  std::atomic<int> generated{0};
  Expected<GeneratedCode> generate(const KernelPlan &plan) override {
    ++generated;
    return compiler.generate(plan);
  }
  Expected<std::unique_ptr<HostCode>> loadHostCode(std::span<const char> object, const std::string &symbol) override {
    return compiler.loadHostCode(object, symbol);
  }

private:
  Compiler compiler;
};

/// Small problems, each with code of its own.
Problem problemOf(int number) {
  Problem problem;
  problem.batch = 1 + number % 2;
  problem.headsQ = 2;
  problem.headsKV = 1;
  problem.seqQ = problem.seqKV = 40;
  problem.dimQK = problem.dimV = 16 + 8 * (number % 4);
  problem.dtype = DType::F32;
  problem.causal = number / 4 % 2 == 1;
  const char *masks[] = {"", "(q - k) % 3 == 0", "k // 8 == q // 8"};
  problem.mask = masks[number / 8 % 3];
  return problem;
}

/// Every query sees itself, and all rows of V are alike, so each row of O is that row whatever the scores are.
struct Tensors {
  explicit Tensors(const Problem &p)
      : q(Tensor::zeros(ElementType::F32, shapeOfQ(p), p.layout).value()),
        k(Tensor::zeros(ElementType::F32, shapeOfK(p), p.layout).value()),
        v(Tensor::zeros(ElementType::F32, shapeOfV(p), p.layout).value()),
        o(Tensor::zeros(ElementType::F32, shapeOfO(p), p.layout).value()), lse(p.batch * p.headsQ * p.seqQ),
        args(argsFor(p)) {
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t row = 0; row < p.seqKV; ++row)
        for (int64_t d = 0; d < p.dimV; ++d) {
          q.set(b, 0, row, d, 0.1 * static_cast<double>(row % 5));
          k.set(b, 0, row, d, 0.2 * static_cast<double>(d % 3));
          v.set(b, 0, row, d, valueOf(d));
        }
    args.q = q.ref(), args.k = k.ref(), args.v = v.ref(), args.o = o.ref();
    args.lse = lse.data();
  }
  static double valueOf(int64_t d) { return 1 + 0.25 * static_cast<double>(d); }
  bool isRight() const {
    for (int64_t b = 0; b < o.shape().batch; ++b)
      for (int64_t h = 0; h < o.shape().heads; ++h)
        for (int64_t row = 0; row < o.shape().rows; ++row)
          for (int64_t d = 0; d < o.shape().dim; ++d)
            if (std::abs(o.at(b, h, row, d) - valueOf(d)) > 1e-4) return false;
    return true;
  }

  Tensor q, k, v, o;
  std::vector<float> lse;
  KernelArgs args;
};

bool computes(const Attention &attention, Tensors &tensors) {
  AlignedBuffer workspace =
      AlignedBuffer::zeros(attention.workspaceBytes(Direction::Forward, tensors.args), "workspace").value();
  attention.useWorkspace(Direction::Forward, workspace.data(), tensors.args);
  return attention.forward(nullptr, tensors.args) && tensors.isRight();
}

/// Calls `work` with 0 to kThreads - 1, all at once.
template <class Work> void atOnce(Work work) {
  std::barrier start(kThreads);
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      work(i);
    });
}

struct Host {
  TemporaryFolder folder;
  CountingCompiler compiler;

  std::shared_ptr<Context> context() {
    ContextOptions options;
    options.generator = &compiler;
    options.hostCompiler = Compiler::hostCompiler();
    options.cacheDir = folder.path;
    return Context::create(options).value();
  }
  static Expected<Attention> prepare(Context &context, int number) {
    return Attention::prepare(context, problemOf(number), Target::hostCpu());
  }
};

int64_t residentPages() {
  malloc_trim(0);
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsOurs = false; // sanitizers keep freed memory
#else
constexpr bool kMemoryIsOurs = true;
#endif

} // namespace

TEST_CASE("24 threads ask for one problem: one compile, and all compute with the same code") {
  Host host;
  for (int round = 0; round < kRounds; ++round) {
    auto context = host.context();
    std::atomic<int> right{0}, same{0};
    const int before = host.compiler.generated;
    std::vector<Kernel> kernels(kThreads, Kernel(nullptr, false));
    atOnce([&](int i) {
      Expected<Attention> attention = Host::prepare(*context, round % 8);
      if (!attention) return;
      kernels[i] = attention->kernels().front();
      Tensors tensors(problemOf(round % 8));
      right += computes(*attention, tensors);
    });
    CHECK(right == kThreads);
    for (const Kernel &kernel : kernels)
      same += kernel.sameCodeAs(kernels.front());
    CHECK(same == kThreads);
    CHECK(host.compiler.generated - before == (round < 8 ? 1 : 0)); // then they are on disk
  }
}

TEST_CASE("24 threads, 24 problems: prepared, run, dropped and prepared again, without growing") {
  Host host;
  int64_t settled = 0;
  for (int round = 0; round < kRounds; ++round) {
    auto context = host.context();
    std::atomic<int> right{0};
    atOnce([&](int i) {
      const int number = (i + round) % kThreads;
      for (int turn = 0; turn < 3; ++turn) {
        Expected<Attention> attention = Host::prepare(*context, number);
        if (!attention) return;
        Tensors tensors(problemOf(number));
        for (int launch = 0; launch < 3; ++launch)
          right += computes(*attention, tensors);
        attention = fail(Stage::Input, "dropped");
        if (i % 6 == 0) context->dropUnused(); // while others prepare and run
      }
    });
    CHECK(right == kThreads * 9);
    if (round == 5) settled = residentPages();
  }
  CHECK(host.compiler.generated == kThreads); // in the first round; then they come from disk
  const int64_t after = residentPages();
  MESSAGE("resident pages after round 5: ", settled, ", after the last: ", after);
  if (kMemoryIsOurs) CHECK(after <= settled * 105 / 100);
}

TEST_CASE("24 threads compile for a GPU at once, without one") {
  Host host;
  auto context = host.context();
  if (auto nvrtc = context->nvrtc(); !nvrtc) {
    MESSAGE("skipped: no NVRTC: ", nvrtc.error().text());
    return;
  }
  const Target target = Target::parse("sm_90").value();
  std::atomic<int> compiled{0};
  atOnce([&](int i) {
    Problem problem = problemOf(i % 8); // three threads each
    problem.dtype = DType::BF16;
    const KernelPlan plan = choosePlans(problem, target).value().front().plan;
    compiled += context->compile(plan).has_value();
  });
  CHECK(compiled == kThreads);
}
