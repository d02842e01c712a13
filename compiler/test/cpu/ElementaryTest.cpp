// exp2, exp, log and tanh as generated code, against the C library in double precision, in units of the last place.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "../../lib/cpu/Elementary.h"
#include "CpuKernelHarness.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <cmath>

using namespace tilewright;
using namespace tilewright::cpu;

namespace {

using Emit = mlir::Value (*)(Emitter &, mlir::Value);

/// Applies a function to a multiple of 16 values, in place.
std::vector<float> apply(Emit emit, std::vector<float> values, const Target &target) {
  std::unique_ptr<mlir::MLIRContext> context = makeCompilerContext();
  Emitter e(mlir::UnknownLoc::get(context.get()), context.get(), target.vectorBits);
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(e.getLoc());
  e.setInsertionPointToStart(module->getBody());
  auto function = mlir::func::FuncOp::create(e, "apply", e.getFunctionType({e.pointer, e.i64, e.i64, e.pointer}, {}));
  function->setAttr("tw.scratch_bytes", e.getI64IntegerAttr(0));
  e.setInsertionPointToStart(function.addEntryBlock());
  e.loop(function.getArgument(1), function.getArgument(2), e.lanes, [&](Value i) {
    Value address = e.advance(function.getArgument(0), e.mul(i, e.constant(4)));
    e.store(emit(e, e.load(e.vectorOf(e.f32), address, 4)), address, 4);
  });
  mlir::func::ReturnOp::create(e);
  Expected<HostObject> object = compileToObject(*module, target, "apply");
  if (!object) FAIL(object.error().text() << object.error().log);
  Expected<std::unique_ptr<HostCode>> code = loadObject(object->bytes, "apply");
  if (!code) FAIL(code.error().text());
  (*code)->run(*reinterpret_cast<const KernelArgs *>(values.data()), 0, static_cast<int64_t>(values.size()), nullptr);
  return values;
}

/// Largest error in units of the reference's last place, over finite references of at least `smallest`.
double worstUlps(Emit emit, double (*reference)(double), double low, double high, const Target &target) {
  constexpr int kCount = 1 << 16;
  std::vector<float> inputs(kCount);
  for (int i = 0; i < kCount; ++i)
    inputs[i] = static_cast<float>(low + (high - low) * i / (kCount - 1));
  std::vector<float> results = apply(emit, inputs, target);
  double worst = 0;
  for (int i = 0; i < kCount; ++i) {
    double expected = reference(inputs[i]);
    float rounded = std::fabs(static_cast<float>(expected));
    if (rounded < 1.2e-38f) continue;
    double ulp = std::nextafter(rounded, INFINITY) - static_cast<double>(rounded);
    worst = std::max(worst, std::fabs(results[i] - expected) / ulp);
  }
  return worst;
}

double exp2Reference(double x) { return std::exp2(x); }
double expReference(double x) { return std::exp(x); }
double logReference(double x) { return std::log(x); }
double tanhReference(double x) { return std::tanh(x); }

std::vector<float> specials(Emit emit, std::vector<float> values, const Target &target) {
  values.resize(16, 1.0f);
  return apply(emit, values, target);
}

const float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

} // namespace

TEST_CASE("accuracy on every level") {
  for (const Target &target : test::runnableTargets()) {
    CAPTURE(target.cpuLevel);
    CHECK(worstUlps(emitExp2NonPositive, exp2Reference, -125, 0, target) < 3);
    CHECK(worstUlps(emitExp, expReference, -87, 88.7, target) < 2);
    CHECK(worstUlps(emitExp, expReference, -1, 1, target) < 2);
    CHECK(worstUlps(emitLog, logReference, 1e-6, 4, target) < 2);
    CHECK(worstUlps(emitLog, logReference, 0.99, 1.01, target) < 2);
    CHECK(worstUlps(emitLog, logReference, 1, 3e38, target) < 2);
    CHECK(worstUlps(emitTanh, tanhReference, -10, 10, target) < 3);
    CHECK(worstUlps(emitTanh, tanhReference, -0.01, 0.01, target) < 3);
  }
}

TEST_CASE("special values") {
  for (const Target &target : test::runnableTargets()) {
    CAPTURE(target.cpuLevel);
    std::vector<float> r = specials(emitExp2NonPositive, {0, -kInf, -126.5f, -1e30f, kNaN, -1}, target);
    CHECK(r[0] == 1);
    CHECK(r[1] == 0);
    CHECK(r[2] == 0);
    CHECK(r[3] == 0);
    CHECK(std::isnan(r[4]));
    CHECK(r[5] == 0.5f);
    r = specials(emitExp, {0, -kInf, kInf, kNaN, 1000, -1000, 88.72f, -100}, target);
    CHECK(r[0] == 1);
    CHECK(r[1] == 0);
    CHECK(r[2] == kInf);
    CHECK(std::isnan(r[3]));
    CHECK(r[4] == kInf);
    CHECK(r[5] == 0);
    CHECK(r[6] == doctest::Approx(std::exp(88.72)).epsilon(1e-5));
    CHECK(r[7] == doctest::Approx(std::exp(-100.0)).epsilon(1e-2)); // denormal
    r = specials(emitLog, {1, 0, -1, kInf, kNaN, 1e-40f, -0.0f}, target);
    CHECK(r[0] == 0);
    CHECK(r[1] == -kInf);
    CHECK(std::isnan(r[2]));
    CHECK(r[3] == kInf);
    CHECK(std::isnan(r[4]));
    CHECK(r[5] == doctest::Approx(std::log(1e-40)).epsilon(1e-5));
    CHECK(r[6] == -kInf);
    r = specials(emitTanh, {0, kInf, -kInf, kNaN, 30, -30, 1e-30f}, target);
    CHECK(r[0] == 0);
    CHECK(r[1] == 1);
    CHECK(r[2] == -1);
    CHECK(std::isnan(r[3]));
    CHECK(r[4] == 1);
    CHECK(r[5] == -1);
    CHECK(r[6] == 1e-30f);
  }
}
