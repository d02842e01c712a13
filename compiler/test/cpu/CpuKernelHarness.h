// Compiles a problem's kernels for a CPU level, runs them over memory that is hostile outside the tensors, and verifies
// the results against the double-precision reference.
#pragma once

#include "mlir/IR/MLIRContext.h"
#include "tilewright/Compiler.h"
#include "tilewright/Kernel.h"
#include "tilewright/cpu/HostObject.h"
#include "tilewright/reference/Verify.h"
#include "tilewright/tensor/AlignedBuffer.h"
#include "tilewright/tensor/Random.h"
#include "tilewright/tensor/Table.h"
#include <cstring>
#include <doctest/doctest.h>
#include <limits>
#include <map>

namespace tilewright::test {

/// The levels that this machine can run, widest first.
inline std::vector<Target> runnableTargets() {
  std::vector<Target> targets;
  Target host = Target::hostCpu();
  const std::pair<const char *, int> levels[] = {{"x86-64-v4", 512}, {"x86-64-v3", 256}, {"x86-64-v2", 128}};
  for (auto [level, bits] : levels) {
    if (bits > host.vectorBits) continue;
    Target target = host;
    target.cpuLevel = level;
    target.vectorBits = bits;
    targets.push_back(target);
  }
  return targets;
}

inline Target widest() { return runnableTargets().front(); }

/// Two batch entries of two heads, forward and gradients.
inline Problem problemOf(int64_t sq, int64_t sk, int64_t dim, DType dtype = DType::F32) {
  Problem p;
  p.batch = 2;
  p.headsQ = p.headsKV = 2;
  p.seqQ = sq;
  p.seqKV = sk;
  p.dimQK = p.dimV = dim;
  p.dtype = dtype;
  p.layout = Layout::BHSD;
  p.direction = Direction::Backward;
  return p;
}

inline Table intTable(std::vector<int32_t> elements, std::vector<int64_t> shape) {
  Expected<Table> table = Table::ofInts(elements, std::move(shape), "table");
  REQUIRE(table);
  return std::move(*table);
}

/// Code of a plan, compiled once in this process: lengths, strides and data do not enter it, so most of the problems of
/// a test share theirs.
struct CompiledCode {
  std::unique_ptr<HostCode> code;
  int64_t scratchBytes = 0;
};

inline const CompiledCode &compiledCode(const KernelPlan &plan) {
  static std::map<std::string, CompiledCode> known;
  auto [entry, isNew] = known.try_emplace(plan.canonicalText());
  if (!isNew) return entry->second;
  Compiler compiler;
  Expected<GeneratedCode> generated = compiler.generate(plan);
  if (!generated) FAIL(generated.error().text() << "\n" << generated.error().log);
  Expected<std::unique_ptr<HostCode>> code = compiler.loadHostCode(generated->object, generated->symbol);
  if (!code) FAIL(code.error().text());
  entry->second = {std::move(*code), generated->scratchBytes};
  return entry->second;
}

/// A tensor followed, in every head, by rows of NaN that belong to nobody.
class GuardedTensor {
public:
  static constexpr int64_t kGuardRows = 3;

  GuardedTensor() = default;
  GuardedTensor(ElementType type, TensorShape shape) : shape(shape), type(type) {
    TensorShape padded = shape;
    padded.rows += kGuardRows;
    padded.heads += 1;
    Expected<Tensor> made = Tensor::zeros(type, padded, Layout::BHSD);
    REQUIRE(made);
    storage = std::move(*made);
    for (int64_t b = 0; b < padded.batch; ++b)
      for (int64_t h = 0; h < padded.heads; ++h)
        for (int64_t r = 0; r < padded.rows; ++r)
          for (int64_t d = 0; d < padded.dim; ++d)
            storage.set(b, h, r, d, std::numeric_limits<double>::quiet_NaN());
  }

  void copyFrom(const Tensor &source) {
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t h = 0; h < shape.heads; ++h)
        for (int64_t r = 0; r < shape.rows; ++r)
          for (int64_t d = 0; d < shape.dim; ++d)
            storage.set(b, h, r, d, source.at(b, h, r, d));
  }
  void set(int64_t b, int64_t h, int64_t r, int64_t d, double value) { storage.set(b, h, r, d, value); }
  double at(int64_t b, int64_t h, int64_t r, int64_t d) const { return storage.at(b, h, r, d); }
  TensorRef ref() const { return storage.ref(); }
  TensorView view() const { return storage.valid() ? TensorView(storage.ref(), type, shape) : TensorView(); }

  /// The rows and the head beyond the tensor still hold NaN.
  bool guardsIntact() const {
    const TensorShape padded = storage.shape();
    for (int64_t b = 0; b < padded.batch; ++b)
      for (int64_t h = 0; h < padded.heads; ++h)
        for (int64_t r = h < shape.heads ? shape.rows : 0; r < padded.rows; ++r)
          for (int64_t d = 0; d < padded.dim; ++d)
            if (storage.at(b, h, r, d) == storage.at(b, h, r, d)) return false;
    return true;
  }

private:
  Tensor storage;
  TensorShape shape;
  ElementType type = ElementType::F32;
};

struct CpuRun {
  Problem problem;
  std::vector<Table> tables;
  GuardedTensor q, k, v, dO, o, dQ, dK, dV;
  std::vector<float> lse, lseRest, delta;
  AlignedBuffer partials;
  std::optional<KernelArgs> ownArgs; ///< Used instead of the tensors above, if set.

  CpuRun(const Problem &p, uint64_t seed, DataPattern pattern = DataPattern::Normal) : problem(p) {
    Expected<RandomTensors> random = randomTensors(p, seed, pattern);
    REQUIRE(random);
    ElementType type = elementType(p.dtype);
    q = GuardedTensor(type, shapeOfQ(p));
    k = GuardedTensor(type, shapeOfK(p));
    v = GuardedTensor(type, shapeOfV(p));
    o = GuardedTensor(type, shapeOfO(p));
    q.copyFrom(random->q);
    k.copyFrom(random->k);
    v.copyFrom(random->v);
    lse.assign(p.batch * p.headsQ * p.seqQ, std::numeric_limits<float>::quiet_NaN());
    delta = lseRest = lse;
    if (p.direction == Direction::Backward) {
      dO = GuardedTensor(type, shapeOfO(p));
      dO.copyFrom(random->dO);
      dQ = GuardedTensor(type, shapeOfQ(p));
      dK = GuardedTensor(type, shapeOfK(p));
      dV = GuardedTensor(type, shapeOfV(p));
    }
  }

  KernelArgs args() {
    if (ownArgs) return *ownArgs;
    KernelArgs a = argsFor(problem);
    a.q = q.ref(), a.k = k.ref(), a.v = v.ref(), a.o = o.ref();
    if (problem.direction == Direction::Backward) a.dO = dO.ref(), a.dQ = dQ.ref(), a.dK = dK.ref(), a.dV = dV.ref();
    a.lse = lse.data();
    a.lseRest = lseRest.data();
    a.delta = delta.data();
    a.partials = partials.as<float>();
    for (size_t i = 0; i < tables.size(); ++i)
      a.tables[i] = tables[i].ref();
    return a;
  }

  AttentionInputs inputs() const {
    AttentionInputs in{q.view(), k.view(), v.view(), dO.view(), {}};
    for (const Table &table : tables)
      in.tables.push_back(table.data());
    return in;
  }

  /// Runs all kernels of the problem; `schedule` as for --schedule.
  void run(const Target &target, const std::string &schedule = "") {
    std::vector<KernelRole> roles = {KernelRole::Forward};
    if (problem.direction == Direction::Backward)
      roles.insert(roles.end(), {KernelRole::Delta, KernelRole::DKV, KernelRole::DQ});
    Expected<ScheduleOverrides> overrides = ScheduleOverrides::parse(schedule);
    REQUIRE(overrides);
    for (size_t i = 0; i < roles.size(); ++i) {
      Expected<KernelPlan> plan = KernelPlan::make(problem, target, roles[i], *overrides);
      if (!plan) FAIL(plan.error().text());
      if (roles[i] == KernelRole::Forward && plan->schedule.splitKV > 1) {
        roles.insert(roles.begin() + 1, KernelRole::Merge);
        preparePartials(*plan);
      }
      const CompiledCode &compiled = compiledCode(*plan);
      launch(*compiled.code, *plan, compiled.scratchBytes);
    }
  }

  Verification verify() {
    const TensorShape rows{problem.batch, problem.headsQ, problem.seqQ, 1};
    AttentionOutputs outputs{o.view(), TensorView(lse.data(), ElementType::F32, rows, Layout::BHSD), dQ.view(),
                             dK.view(), dV.view()};
    Expected<Verification> result = verifyAttention(problem, inputs(), outputs);
    if (!result) FAIL(result.error().text());
    return *result;
  }

private:
  /// States start as NaN and are followed by a canary.
  void preparePartials(const KernelPlan &plan) {
    const int64_t bytes = partialsBytes(plan, args());
    Expected<AlignedBuffer> made = AlignedBuffer::zeros(bytes + kCanary, "partials");
    REQUIRE(made);
    partials = std::move(*made);
    std::memset(partials.data(), 0xff, bytes + kCanary);
  }

  static bool canaryLives(const char *end) {
    for (int64_t i = 0; i < kCanary; ++i)
      if (static_cast<unsigned char>(end[i]) != 0xff) return false;
    return true;
  }

  void launch(const HostCode &code, const KernelPlan &plan, int64_t scratchBytes) {
    KernelArgs a = args();
    Expected<int64_t> blocks = blockCount(plan, a);
    REQUIRE(blocks);
    if (*blocks == 0) return;
    REQUIRE(checkArgs(plan, a));
    // Scratch starts as NaN and is followed by a canary.
    Expected<AlignedBuffer> scratch = AlignedBuffer::zeros(scratchBytes + kCanary, "scratch");
    REQUIRE(scratch);
    char *bytes = scratch->data();
    std::memset(bytes, 0xff, scratchBytes + kCanary);
    int64_t half = *blocks / 2; // two ranges, as two threads would take them
    code.run(a, half, *blocks, bytes);
    code.run(a, 0, half, bytes);
    REQUIRE(canaryLives(bytes + scratchBytes));
    if (int64_t size = partialsBytes(plan, a)) REQUIRE(canaryLives(partials.data() + size));
  }

  static constexpr int64_t kCanary = 64;
};

/// Runs and verifies one problem on one target.
inline void checkProblem(const Problem &problem, const Target &target, uint64_t seed, std::vector<Table> tables = {},
                         const std::string &schedule = "", DataPattern pattern = DataPattern::Normal) {
  CpuRun run(problem, seed, pattern);
  run.tables = std::move(tables);
  run.run(target, schedule);
  Verification result = run.verify();
  CHECK_MESSAGE(result.ok, problem.constantsText(), " sq ", problem.seqQ, " sk ", problem.seqKV, " ", target.cpuLevel,
                " ", schedule, ": ", result.failure());
  CHECK(run.o.guardsIntact());
  if (problem.direction == Direction::Backward) {
    CHECK(run.dQ.guardsIntact());
    CHECK(run.dK.guardsIntact());
    CHECK(run.dV.guardsIntact());
  }
}

} // namespace tilewright::test
