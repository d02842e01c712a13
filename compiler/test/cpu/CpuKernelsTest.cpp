// The CPU target against the double-precision reference: shapes, types, levels, data, and what must not matter.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "CpuKernelHarness.h"

#include <cmath>
#include <span>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

using namespace tilewright;
using namespace tilewright::test;

namespace {

/// Hands out memory that ends at a page without access.
class EdgeMemory {
public:
  ~EdgeMemory() {
    for (auto [base, bytes] : maps)
      munmap(base, bytes);
  }
  void *place(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE), usable = (bytes + page - 1) / page * page;
    void *base = mmap(nullptr, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(base != MAP_FAILED);
    REQUIRE(mprotect(static_cast<char *>(base) + usable, page, PROT_NONE) == 0);
    maps.emplace_back(base, usable + page);
    return static_cast<char *>(base) + usable - bytes;
  }

private:
  std::vector<std::pair<void *, size_t>> maps;
};

} // namespace

TEST_CASE("shapes: lengths of one, odd ones, longer and shorter than a tile, any head dim") {
  uint64_t seed = 1;
  for (auto [sq, sk] : {std::pair{1, 1}, {1, 130}, {130, 1}, {17, 33}, {64, 64}, {100, 77}, {150, 200}})
    for (int64_t dim : {1, 7, 8, 40, 64, 72})
      checkProblem(problemOf(sq, sk, dim), widest(), seed++);
  checkProblem(problemOf(65, 70, 256), widest(), seed++);
}

TEST_CASE("every level gives right results") {
  for (const Target &target : runnableTargets())
    for (DType dtype : {DType::F32, DType::F16, DType::BF16})
      for (int64_t dim : {5, 24, 64}) {
        Problem p = problemOf(70, 90, dim, dtype);
        p.causal = true;
        p.softcap = 20;
        checkProblem(p, target, 7);
      }
}

TEST_CASE("tile sizes") {
  for (const char *schedule : {"tile_q=16,tile_kv=16", "tile_q=48,tile_kv=80", "tile_q=128,tile_kv=32",
                               "tile_q=64,tile_kv=128", "tile_q=32,tile_kv=64,order=longest_first"}) {
    Problem p = problemOf(150, 170, 40);
    p.causal = true;
    checkProblem(p, widest(), 3, {}, schedule);
  }
}

TEST_CASE("heads: groups, different value dims, both layouts") {
  Problem p = problemOf(60, 100, 32);
  p.headsQ = 6;
  p.headsKV = 2;
  p.dimV = 20;
  checkProblem(p, widest(), 11);
  p.headsQ = 33;
  p.headsKV = 3;
  p.batch = 1;
  p.layout = Layout::BSHD;
  checkProblem(p, widest(), 12);
  p.causal = true;
  checkProblem(p, widest(), 13);
}

/// Equal rows of q and of k whose products are `score` each: P is 1 / keys everywhere, and dV the mean of dO.
CpuRun equalScores(float score) {
  Problem p = problemOf(40, 50, 16);
  p.scale = 1;
  CpuRun run(p, 72);
  for (int64_t r = 0; r < 50; ++r)
    for (int64_t d = 0; d < 16; ++d) {
      if (r < 40) run.q.set(0, 0, r, d, d == 0 ? 1 : 0);
      run.k.set(0, 0, r, d, d == 0 ? score : 0);
    }
  return run;
}

TEST_CASE("large products: an fp32 LSE has no room for the sum, which reaches the gradients apart from it") {
  for (float score : {3e4f, -3e4f, 1e8f, 2e38f}) {
    CAPTURE(score);
    CpuRun run = equalScores(score);
    run.run(widest());
    for (int64_t d = 0; d < 16; ++d) {
      double mean = 0;
      for (int64_t r = 0; r < 40; ++r)
        mean += run.dO.at(0, 0, r, d) / 50.0;
      for (int64_t r = 0; r < 50; ++r)
        CHECK(run.dV.at(0, 0, r, d) == doctest::Approx(mean).epsilon(1e-5));
    }
  }
}

TEST_CASE("gradients take LSE as it stands where the caller keeps no rest") {
  CpuRun run(problemOf(40, 50, 16), 73);
  run.ownArgs = run.args();
  run.ownArgs->lseRest = nullptr;
  run.run(widest());
  CHECK(run.verify().ok);
  for (float rest : run.lseRest)
    CHECK(std::isnan(rest));
}

TEST_CASE("hostile data") {
  uint64_t seed = 90;
  for (DataPattern pattern :
       {DataPattern::OutlierChannels, DataPattern::StrongFirstToken, DataPattern::AllEqual, DataPattern::HugeNegative})
    for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      Problem p = problemOf(97, 113, 64, dtype);
      checkProblem(p, widest(), seed++, {}, "", pattern);
      p.causal = true;
      checkProblem(p, widest(), seed++, {}, "", pattern);
    }
}

TEST_CASE("all ones: the output is exactly one") {
  Problem p = problemOf(140, 140, 8);
  p.mask = "k <= q && q - k < 10";
  CpuRun run(p, 1);
  for (GuardedTensor *t : {&run.q, &run.k, &run.v})
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t r = 0; r < 140; ++r)
          for (int64_t d = 0; d < 8; ++d)
            t->set(b, h, r, d, 1);
  run.run(widest());
  for (int64_t r = 0; r < 140; ++r)
    for (int64_t d = 0; d < 8; ++d)
      CHECK(run.o.at(1, 1, r, d) == 1.0);
  CHECK(run.lse[139] == doctest::Approx(std::sqrt(8.0) + std::log(10.0)).epsilon(1e-6));
}

TEST_CASE("NaN and infinity inside the tensors reach those who see them and nobody else") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (double bad : {nan, inf})
    for (int64_t dim : {3, 16}) {
      SUBCASE("hidden keys") {
        Problem p = problemOf(80, 80, dim);
        p.mask = "k < 50 && q < 60 && k <= q";
        CpuRun run(p, 99);
        for (int64_t r = 50; r < 80; ++r)
          for (int64_t d = 0; d < dim; ++d)
            run.k.set(0, 0, r, d, bad), run.v.set(0, 1, r, d, bad);
        for (int64_t r = 60; r < 80; ++r)
          for (int64_t d = 0; d < dim; ++d)
            run.q.set(1, 0, r, d, bad), run.dO.set(1, 1, r, d, bad);
        run.run(widest());
        Verification result = run.verify();
        CHECK_MESSAGE(result.ok, result.failure());
        CHECK(std::isfinite(run.o.at(0, 1, 59, 0)));
        CHECK(std::isfinite(run.dK.at(1, 0, 49, 0)));
      }
      SUBCASE("seen keys") {
        Problem p = problemOf(80, 80, dim);
        p.causal = true;
        CpuRun run(p, 98);
        run.v.set(0, 0, 40, dim / 2, bad);
        run.k.set(0, 1, 33, 0, nan);
        run.q.set(1, 0, 20, 0, nan);
        run.dO.set(1, 1, 70, 0, bad);
        run.run(widest());
        Verification result = run.verify();
        CHECK_MESSAGE(result.ok, result.failure());
      }
    }
}

TEST_CASE("reads and writes nothing outside tensors and tables") {
  // Everything ends at a page that may not be touched.
  auto copy = [](EdgeMemory &edge, const void *from, int64_t bytes) {
    void *to = edge.place(bytes);
    std::memcpy(to, from, bytes);
    return to;
  };
  for (const Target &target : runnableTargets())
    for (DType dtype : {DType::F32, DType::F16, DType::BF16})
      for (int64_t dim : {3, 20}) {
        Problem p = problemOf(37, 41, dim, dtype);
        p.layout = Layout::BSHD;
        p.mask = "doc[k] <= last[q]";
        p.tables = {{"doc", false, {TableAxis::K}}, {"last", false, {TableAxis::Q}}};
        Expected<RandomTensors> random = randomTensors(p, 3);
        REQUIRE(random);
        CpuRun run(p, 3);
        std::vector<int32_t> doc(41), last(37);
        for (int32_t i = 0; i < 41; ++i)
          doc[i] = i / 10;
        for (int32_t i = 0; i < 37; ++i)
          last[i] = i / 12;
        run.tables.push_back(intTable(doc, {41}));
        run.tables.push_back(intTable(last, {37}));
        EdgeMemory edge;
        KernelArgs args = run.args();
        const std::pair<const Tensor *, TensorRef *> inputs[] = {
            {&random->q, &args.q}, {&random->k, &args.k}, {&random->v, &args.v}, {&random->dO, &args.dO}};
        const std::pair<const Tensor *, TensorRef *> outputs[] = {
            {&random->q, &args.dQ}, {&random->k, &args.dK}, {&random->v, &args.dV}, {&random->dO, &args.o}};
        for (auto list : {std::span(inputs), std::span(outputs)})
          for (auto [tensor, ref] : list) {
            *ref = tensor->ref();
            ref->data = copy(edge, tensor->data(), tensor->bytes());
          }
        args.lse = static_cast<float *>(edge.place(run.lse.size() * 4));
        args.delta = static_cast<float *>(edge.place(run.lse.size() * 4));
        args.tables[0].data = copy(edge, doc.data(), 41 * 4);
        args.tables[1].data = copy(edge, last.data(), 37 * 4);
        run.ownArgs = args;
        run.run(target);
        CHECK(std::isfinite(args.lse[0]));
      }
}

TEST_CASE("no keys, no queries") {
  Problem p = problemOf(20, 0, 8);
  CpuRun none(p, 5);
  none.run(widest());
  for (int64_t r = 0; r < 20; ++r) {
    CHECK(none.o.at(1, 1, r, 0) == 0);
    CHECK(none.lse[r] == -std::numeric_limits<float>::infinity());
    CHECK(none.dQ.at(0, 0, r, 0) == 0);
  }
  p.seqQ = 0;
  p.seqKV = 20;
  CpuRun empty(p, 6);
  empty.run(widest());
  for (int64_t r = 0; r < 20; ++r) {
    CHECK(empty.dK.at(1, 0, r, 0) == 0);
    CHECK(empty.dV.at(0, 1, r, 7) == 0);
  }
}

TEST_CASE("compiling and loading from many threads at once") {
  std::vector<std::thread> threads;
  std::vector<std::string> failures(24);
  for (int i = 0; i < 24; ++i)
    threads.emplace_back([i, &failures] {
      Problem p = problemOf(16, 16, 8 + i % 3);
      p.causal = i % 2;
      Expected<KernelPlan> plan = KernelPlan::make(p, widest(), KernelRole::Forward);
      Compiler compiler;
      Expected<GeneratedCode> generated = compiler.generate(*plan);
      if (!generated) {
        failures[i] = generated.error().text();
        return;
      }
      Expected<std::unique_ptr<HostCode>> code = loadObject(generated->object, generated->symbol);
      if (!code) failures[i] = code.error().text();
    });
  for (std::thread &thread : threads)
    thread.join();
  for (const std::string &failure : failures)
    CHECK(failure == "");
}

TEST_CASE("code is a function of the plan alone, and a damaged object is an error") {
  Problem p = problemOf(64, 64, 32);
  Expected<KernelPlan> plan = KernelPlan::make(p, widest(), KernelRole::DQ);
  REQUIRE(plan);
  Compiler compiler;
  Expected<GeneratedCode> first = compiler.generate(*plan), second = compiler.generate(*plan);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->object == second->object);
  CHECK_FALSE(loadObject(std::span(first->object).first(200), plan->symbol()));
  CHECK_FALSE(loadObject(first->object, "no_such_symbol"));
}
