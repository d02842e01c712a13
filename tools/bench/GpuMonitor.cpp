#include "GpuMonitor.h"
#include "tilewright/cuda/DynamicLibrary.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <fmt/format.h>
#include <mutex>
#include <thread>

namespace tilewright::bench {
namespace {

/// nvmlFieldValue_t and the constants of NVML's binary interface that are used here.
struct FieldValue {
  unsigned fieldId = 0, scopeId = 0;
  long long timestamp = 0, latencyUs = 0;
  int valueType = 0, result = 0;
  union {
    double asDouble;
    unsigned asUnsigned;
    unsigned long long asUnsignedLong = 0;
  };
};
static_assert(sizeof(FieldValue) == 40);
constexpr unsigned kPowerInstant = 186; ///< Milliwatts now; nvmlDeviceGetPowerUsage averages over a second.
constexpr int kClockSm = 1, kValueUnsigned = 1;

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*handleByPciBusId)(const char *address, void **device) = nullptr;
  int (*clockInfo)(void *device, int type, unsigned *mhz) = nullptr;
  int (*powerUsage)(void *device, unsigned *milliwatts) = nullptr;
  int (*fieldValues)(void *device, int count, FieldValue *values) = nullptr; ///< May be null.
};

struct Sample {
  double seconds = 0, clockMhz = NAN, powerW = NAN;
};

std::optional<double> meanOf(const std::deque<Sample> &samples, double begin, double end, double Sample::*member) {
  double sum = 0, nearest = NAN, distance = 0.1; // a sample a tenth of a second away says nothing of the span
  int count = 0;
  for (const Sample &sample : samples) {
    if (std::isnan(sample.*member)) continue;
    if (sample.seconds >= begin && sample.seconds <= end) {
      sum += sample.*member;
      ++count;
    }
    const double away = std::max({begin - sample.seconds, sample.seconds - end, 0.0});
    if (away < distance) {
      distance = away;
      nearest = sample.*member;
    }
  }
  if (count) return sum / count;
  return std::isnan(nearest) ? std::nullopt : std::optional(nearest);
}

} // namespace

double monotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct GpuMonitor::State {
  Nvml nvml;
  void *device = nullptr;
  std::mutex mutex;
  std::deque<Sample> samples;
  std::atomic<bool> stop = false;
  std::thread thread;

  Sample read() const {
    Sample sample;
    unsigned value = 0;
    if (nvml.clockInfo(device, kClockSm, &value) == 0) sample.clockMhz = value;
    FieldValue field;
    field.fieldId = kPowerInstant;
    if (nvml.fieldValues && nvml.fieldValues(device, 1, &field) == 0 && field.result == 0 &&
        field.valueType == kValueUnsigned)
      sample.powerW = field.asUnsigned / 1000.0;
    else if (nvml.powerUsage(device, &value) == 0)
      sample.powerW = value / 1000.0;
    sample.seconds = monotonicSeconds();
    return sample;
  }

  void run() {
    while (!stop) {
      const Sample sample = read();
      {
        std::lock_guard lock(mutex);
        samples.push_back(sample);
      }
      // A query takes the driver's time too: rarely enough that no launch waits for one.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  ~State() {
    stop = true;
    if (thread.joinable()) thread.join();
    if (device) nvml.shutdown();
  }
};

GpuMonitor::GpuMonitor(std::unique_ptr<State> state) : state(std::move(state)) {}
GpuMonitor::~GpuMonitor() = default;
GpuMonitor::GpuMonitor(GpuMonitor &&) noexcept = default;
GpuMonitor &GpuMonitor::operator=(GpuMonitor &&) noexcept = default;

Expected<GpuMonitor> GpuMonitor::start(const std::string &pciAddress) {
  cuda::LibrarySearch search;
  search.what = "NVML";
  search.names = {"libnvidia-ml.so.1"};
  search.directories = {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib",
                        "/usr/local/nvidia/lib64"};
  search.hint = "it comes with the NVIDIA driver; without it clock and power are not recorded";
  auto library = cuda::DynamicLibrary::open(search);
  if (!library) return propagate(library);

  auto state = std::make_unique<State>();
  auto load = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library->symbol(name));
    return function != nullptr;
  };
  Nvml &nvml = state->nvml;
  load(nvml.fieldValues, "nvmlDeviceGetFieldValues");
  if (!load(nvml.init, "nvmlInit_v2") || !load(nvml.shutdown, "nvmlShutdown") ||
      !load(nvml.handleByPciBusId, "nvmlDeviceGetHandleByPciBusId_v2") ||
      !load(nvml.clockInfo, "nvmlDeviceGetClockInfo") || !load(nvml.powerUsage, "nvmlDeviceGetPowerUsage"))
    return fail(Stage::Load, fmt::format("{} is not a usable NVML: a function is missing", library->path()),
                search.hint);
  if (int code = nvml.init(); code != 0)
    return fail(Stage::Load, fmt::format("NVML does not start (code {})", code), search.hint);
  if (int code = nvml.handleByPciBusId(pciAddress.c_str(), &state->device); code != 0) {
    nvml.shutdown();
    state->device = nullptr;
    return fail(Stage::Load, fmt::format("NVML does not know the device at {} (code {})", pciAddress, code),
                search.hint);
  }
  state->thread = std::thread([s = state.get()] { s->run(); });
  return GpuMonitor(std::move(state));
}

GpuReadings GpuMonitor::between(double begin, double end) {
  std::lock_guard lock(state->mutex);
  std::deque<Sample> &samples = state->samples;
  // One sample before the span is kept, for a span that falls between two.
  while (samples.size() > 1 && samples[1].seconds < begin)
    samples.pop_front();
  return {meanOf(samples, begin, end, &Sample::clockMhz), meanOf(samples, begin, end, &Sample::powerW)};
}

} // namespace tilewright::bench
