#include "LaunchTimer.h"
#include "GpuMonitor.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <thread>

namespace tilewright::bench {

const char *const kLaunchTimerSource = R"cuda(
typedef unsigned long long u64;

struct SpinArgs {
  u64 nanoseconds;
  u64 *readings;
};

extern "C" __global__ void tw_bench_spin(SpinArgs args) {
  u64 begin, now, firstCycle, lastCycle;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  asm volatile("mov.u64 %0, %clock64;" : "=l"(firstCycle));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    asm volatile("mov.u64 %0, %clock64;" : "=l"(lastCycle));
  } while (now - begin < args.nanoseconds);
  args.readings[0] = lastCycle - firstCycle;
  args.readings[1] = now - begin;
}

struct FillArgs {
  unsigned *data;
  u64 pairs, seed;
  int bf16;
};

__device__ u64 mix(u64 x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

__device__ unsigned rounded(float low, float high, int bf16) {
  unsigned both;
  if (bf16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

extern "C" __global__ void tw_bench_fill_normal(FillArgs args) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < args.pairs; i += stride) {
    const u64 bits = mix(mix(args.seed + 0x9e3779b97f4a7c15ull) + (i + 1) * 0x9e3779b97f4a7c15ull);
    const float u = ((unsigned)(bits >> 40) + 1) * (1.0f / 16777216);
    const float turn = (unsigned)(bits & 0xffffff) * (1.0f / 16777216);
    const float radius = sqrtf(-2 * logf(u));
    args.data[i] = rounded(radius * cospif(2 * turn), radius * sinpif(2 * turn), args.bf16);
  }
}
)cuda";

namespace {

struct SpinArgs {
  uint64_t nanoseconds = 0;
  void *readings = nullptr;
};

struct FillArgs {
  void *data = nullptr;
  uint64_t pairs = 0, seed = 0;
  int bf16 = 0;
};

constexpr int kFillThreads = 256, kAttempts = 4;
constexpr double kFirstSpin = 2e-3, kProbe = 200e-6; // seconds

Expected<std::unique_ptr<cuda::Module>> compileAndLoad(const cuda::Nvrtc &nvrtc,
                                                       std::shared_ptr<const cuda::Device> device,
                                                       const std::string &architecture, const char *symbol,
                                                       int threads) {
  Expected<cuda::NvrtcResult> compiled =
      nvrtc.compile({.source = kLaunchTimerSource, .name = symbol, .architecture = architecture});
  if (!compiled) return propagate(compiled);
  cuda::Module::Options options;
  options.symbol = symbol;
  options.threadsPerBlock = threads;
  options.compilerVersion = nvrtc.version().cudaVersion();
  return cuda::Module::load(std::move(device), compiled->code, options);
}

} // namespace

Expected<LaunchTimer> LaunchTimer::create(Context &context, const Target &target, int ordinal) {
  LaunchTimer timer;
  auto device = context.device(ordinal);
  if (!device) return propagate(device);
  timer.device = *device;
  auto nvrtc = context.nvrtc();
  if (!nvrtc) return propagate(nvrtc);
  auto spin = compileAndLoad(**nvrtc, *device, target.name, "tw_bench_spin", 1);
  if (!spin) return propagate(spin);
  timer.spinKernel = std::move(*spin);
  auto fill = compileAndLoad(**nvrtc, *device, target.name, "tw_bench_fill_normal", kFillThreads);
  if (!fill) return propagate(fill);
  timer.fillKernel = std::move(*fill);
  auto stream = cuda::Stream::create(*device);
  if (!stream) return propagate(stream);
  timer.queue = std::move(*stream);
  auto readings = cuda::DeviceMemory::allocate(*device, 16);
  if (!readings) return propagate(readings);
  timer.readings = std::move(*readings);
  return timer;
}

Status LaunchTimer::spin(double seconds) {
  SpinArgs args{static_cast<uint64_t>(seconds * 1e9), readings.data()};
  return spinKernel->launch(stream(), 1, &args);
}

/// Milliseconds of each launch into `times`; the result is how long the host took to queue them, in seconds.
Expected<double> LaunchTimer::attempt(const std::function<Status()> &once, const SeriesOptions &options,
                                      double spinSeconds, std::vector<double> &times) {
  const int repeats = options.repeats;
  while (events.size() < 2 * static_cast<size_t>(repeats)) {
    Expected<cuda::Event> event = cuda::Event::create(device);
    if (!event) return propagate(event);
    events.push_back(std::move(*event));
  }
  if (Status status = spin(spinSeconds); !status) return propagate(status);
  const double begin = monotonicSeconds();
  for (int i = 0; i < repeats; ++i) {
    if (options.before)
      if (Status status = options.before(); !status) return propagate(status);
    if (Status status = events[2 * i].record(stream()); !status) return propagate(status);
    if (Status status = once(); !status) return propagate(status);
    if (Status status = events[2 * i + 1].record(stream()); !status) return propagate(status);
  }
  const double queued = monotonicSeconds() - begin;
  if (Status status = spin(kProbe); !status) return propagate(status);
  if (Status status = queue.synchronize(); !status) return propagate(status);
  times.clear();
  for (int i = 0; i < repeats; ++i) {
    Expected<double> ms = events[2 * i + 1].millisecondsSince(events[2 * i]);
    if (!ms) return propagate(ms);
    times.push_back(*ms);
  }
  return queued;
}

Expected<TimedSeries> LaunchTimer::measure(const std::function<Status()> &once, const SeriesOptions &options) {
  std::this_thread::sleep_for(std::chrono::duration<double>(options.pauseSeconds));
  TimedSeries series;
  series.begin = monotonicSeconds();
  for (int i = 0; i < options.warmups; ++i)
    if (Status status = once(); !status) return propagate(status);
  std::vector<double> times;
  double spinSeconds = kFirstSpin;
  for (int i = 0; i < kAttempts; ++i) {
    Expected<double> queued = attempt(once, options, spinSeconds, times);
    if (!queued) return propagate(queued);
    series.figures.queued = *queued < spinSeconds;
    if (series.figures.queued) break;
    spinSeconds = 2 * *queued;
  }
  series.end = monotonicSeconds();

  uint64_t counted[2] = {0, 0};
  if (Status status = readings.copyToHost(counted, sizeof(counted)); !status) return propagate(status);
  if (counted[1])
    series.figures.clockAfterMhz = static_cast<double>(counted[0]) * 1000 / static_cast<double>(counted[1]);
  std::sort(times.begin(), times.end());
  const size_t half = times.size() / 2;
  series.figures.ms = times.size() % 2 ? times[half] : (times[half - 1] + times[half]) / 2;
  series.figures.fastestMs = times.front();
  series.figures.slowestMs = times.back();
  return series;
}

Status LaunchTimer::fillNormal(cuda::DeviceMemory &memory, DType dtype, uint64_t seed) {
  FillArgs args{memory.data(), static_cast<uint64_t>(memory.size()) / 4, seed, dtype == DType::BF16 ? 1 : 0};
  const auto blocks = static_cast<unsigned>(std::clamp<uint64_t>(args.pairs / kFillThreads, 1, 4096));
  return fillKernel->launch(stream(), blocks, &args);
}

} // namespace tilewright::bench
