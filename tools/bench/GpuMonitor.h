// SM clock and power of a GPU, sampled in the background through NVML, the library that comes with NVIDIA's driver. It
// is opened when first used; without it there are no samples and nothing else changes.
#pragma once

#include "tilewright/Error.h"
#include <memory>
#include <optional>
#include <string>

namespace tilewright::bench {

/// Means over a span of time.
struct GpuReadings {
  std::optional<double> clockMhz, powerW;
};

/// Seconds of the clock that spans are given in: the system's monotonic clock, the same in every process.
double monotonicSeconds();

class GpuMonitor {
public:
  /// Begins to sample, about a hundred times a second. `pciAddress` is the device's as CUDA writes it ("0000:1b:00.0").
  static Expected<GpuMonitor> start(const std::string &pciAddress);
  ~GpuMonitor();
  GpuMonitor(GpuMonitor &&) noexcept;
  GpuMonitor &operator=(GpuMonitor &&) noexcept;

  /// Of the samples within [begin, end], in monotonicSeconds(); of the nearest one when the span is shorter than the
  /// distance between samples. Forgets what is older than `begin`.
  GpuReadings between(double begin, double end);

private:
  struct State;
  explicit GpuMonitor(std::unique_ptr<State> state);
  std::unique_ptr<State> state;
};

} // namespace tilewright::bench
