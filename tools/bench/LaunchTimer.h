// Times work on a GPU launch by launch, with nothing of the host in the figures.
//
// A series: a pause (a GPU that comes from a long load runs slower), warm-ups, then a kernel that keeps the stream busy
// while all launches are queued, each between two events. Were the queue not full in time, the series is repeated with
// a longer wait. A probe after the last launch counts SM cycles against the GPU's nanosecond timer: the clock that the
// launches ran at.
#pragma once

#include "BenchResult.h"
#include "tilewright/Context.h"
#include "tilewright/cuda/DeviceMemory.h"
#include "tilewright/cuda/Module.h"
#include "tilewright/cuda/Stream.h"
#include <functional>

namespace tilewright::bench {

struct SeriesOptions {
  int repeats = 30, warmups = 10;
  double pauseSeconds = 0.3;
  /// Enqueued before each launch, outside its time: what leaves the caches as the measurement wants them.
  std::function<Status()> before = {};
};

/// A series and when it ran, in monotonicSeconds(), warm-ups included.
struct TimedSeries {
  SeriesFigures figures;
  double begin = 0, end = 0;
};

class LaunchTimer {
public:
  /// Compiles and loads the kernels it needs, for the architecture `target`.
  static Expected<LaunchTimer> create(Context &context, const Target &target, int device = 0);

  /// The stream that work is timed on.
  void *stream() const { return queue.handle(); }

  /// `once` enqueues one run of the work on stream() and returns at once.
  Expected<TimedSeries> measure(const std::function<Status()> &once, const SeriesOptions &options);

  /// Standard normal values in `dtype` (bf16 or fp16), a function of (seed, index) alone. Box-Muller in fp32.
  Status fillNormal(cuda::DeviceMemory &memory, DType dtype, uint64_t seed);

private:
  Status spin(double seconds);
  Expected<double> attempt(const std::function<Status()> &once, const SeriesOptions &options, double spinSeconds,
                           std::vector<double> &times);

  std::shared_ptr<const cuda::Device> device;
  std::unique_ptr<cuda::Module> spinKernel, fillKernel;
  cuda::Stream queue;
  cuda::DeviceMemory readings; ///< What the spin kernel counted: cycles, nanoseconds.
  std::vector<cuda::Event> events;
};

/// The source of its kernels, for tests: entry points tw_bench_spin and tw_bench_fill_normal.
extern const char *const kLaunchTimerSource;

} // namespace tilewright::bench
