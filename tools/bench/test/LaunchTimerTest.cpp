// The timer's own kernels compile for every family; on a GPU they fill, wait and measure as they should.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "LaunchTimer.h"
#include "GpuMonitor.h"
#include "tilewright/tensor/Half.h"
#include <cmath>
#include <cstdio>
#include <doctest/doctest.h>
#include <vector>

using namespace tilewright;
using namespace tilewright::bench;

namespace {

std::shared_ptr<Context> context() {
  ContextOptions options;
  options.cacheDir = "";
  auto made = Context::create(options);
  REQUIRE(made.has_value());
  return *made;
}

} // namespace

TEST_CASE("kernels compile without spills") {
  auto nvrtc = context()->nvrtc();
  if (!nvrtc) {
    std::puts("skipped: no NVRTC");
    return;
  }
  for (const char *architecture : {"sm_80", "sm_90a"})
    for (const char *symbol : {"tw_bench_spin", "tw_bench_fill_normal"}) {
      auto compiled = (*nvrtc)->compile({.source = kLaunchTimerSource, .name = symbol, .architecture = architecture});
      REQUIRE_MESSAGE(compiled.has_value(), compiled.error().text());
      CHECK(compiled->report.spillBytes() == 0);
    }
}

TEST_CASE("inputs are standard normal and times are the GPU's [gpu]") {
  auto own = context();
  auto device = own->device(0);
  if (!device) {
    std::puts("skipped: no device");
    return;
  }
  auto target = Target::forComputeCapability((*device)->info().major, (*device)->info().minor);
  REQUIRE(target.has_value());
  auto timer = LaunchTimer::create(*own, *target);
  REQUIRE_MESSAGE(timer.has_value(), timer.error().text());
  constexpr int64_t count = 1 << 22;
  for (DType dtype : {DType::BF16, DType::F16}) {
    auto memory = cuda::DeviceMemory::allocate(*device, count * 2);
    REQUIRE(memory.has_value());
    REQUIRE(timer->fillNormal(*memory, dtype, 7).has_value());
    REQUIRE((*device)->synchronize().has_value());
    std::vector<uint16_t> bits(count);
    REQUIRE(memory->copyToHost(bits.data(), count * 2).has_value());
    double sum = 0, squares = 0, fourths = 0;
    for (uint16_t b : bits) {
      const double x = dtype == DType::BF16 ? floatFromBFloat16(b) : floatFromHalf(b);
      sum += x;
      squares += x * x;
      fourths += x * x * x * x;
    }
    CHECK(std::fabs(sum / count) < 0.005);
    CHECK(squares / count == doctest::Approx(1).epsilon(0.01));
    CHECK(fourths / count == doctest::Approx(3).epsilon(0.02));
  }
  auto memory = cuda::DeviceMemory::allocate(*device, int64_t{1} << 28);
  REQUIRE(memory.has_value());
  auto series = timer->measure([&] { return memory->fill(1, timer->stream()); },
                               {.repeats = 20, .warmups = 2, .pauseSeconds = 0});
  REQUIRE(series.has_value());
  const SeriesFigures &f = series->figures;
  CHECK(f.queued);
  CHECK(f.fastestMs > 0);
  CHECK(f.fastestMs <= f.ms);
  CHECK(f.ms <= f.slowestMs);
  CHECK(f.ms * 20 <= (series->end - series->begin) * 1000);
  REQUIRE(f.clockAfterMhz.has_value());
  CHECK(*f.clockAfterMhz > 100);
  CHECK(*f.clockAfterMhz < 5000);
}
