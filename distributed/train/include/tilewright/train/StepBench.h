// How long a training step takes under a strategy, and where: for benchmarks.
#pragma once

#include "tilewright/cuda/Stream.h"
#include "tilewright/distributed/engine/CudaDevice.h"
#include "tilewright/distributed/transport/Transport.h"
#include "tilewright/train/AllocatedMemory.h"
#include <utility>
#include <vector>

namespace tilewright::train {

/// A transport that another does the work of, timed: on the host, or on a GPU, where collectives are only enqueued, by
/// events around them.
class TimedTransport final : public dist::Transport {
public:
  TimedTransport(dist::Transport &inner, dist::ComputeDevice &device)
      : inner(inner), gpu(dynamic_cast<dist::CudaDevice *>(&device)) {}
  int rank() const override { return inner.rank(); }
  int worldSize() const override { return inner.worldSize(); }
  std::string_view name() const override { return inner.name(); }
  Status run(const dist::Collective &collective) override;
  Status beginGroup() override;
  Status endGroup() override;
  Expected<void *> allocate(int64_t bytes, std::string_view what) override { return inner.allocate(bytes, what); }
  Status status() override { return inner.status(); }
  Expected<std::vector<std::string>> exchange(const std::string &text) override { return inner.exchange(text); }
  void abort(const std::string &reason) override { inner.abort(reason); }
  int64_t sentBytes() const override { return inner.sentBytes(); }

  /// Forgets what was timed. Like milliseconds(), between steps and when the device has finished.
  void reset();
  /// In collectives, since the last reset.
  Expected<double> milliseconds() const;
  int64_t calls() const { return callCount; }

private:
  template <class Work> Status timed(Work work);

  dist::Transport &inner;
  dist::CudaDevice *gpu; ///< Null on the host.
  std::vector<std::pair<cuda::Event, cuda::Event>> around;
  double hostMs = 0;
  int64_t callCount = 0;
  bool inGroup = false;
};

struct StepBenchResult {
  std::vector<double> milliseconds; ///< Whole steps, the slowest rank's each.
  double computeMs = 0;             ///< Forward and backward on this rank without waiting for parameters, median.
  double waitMs = 0;                ///< The rest of the step, median: communication that is not hidden, and the update.
  double communicationMs = 0;       ///< In collectives a step, hidden or not, on average.
  int64_t calls = 0, sentBytes = 0; ///< Collectives a step, and what this rank sends in them.
  dist::MemoryByCategory memory;    ///< Of this rank: allocatedMemory().
  double median() const;
};

/// Runs `warmup` and then `steps` steps of one micro-batch of `sequences` random sequences on this rank. All ranks of
/// `transport` call it. `model` has room for the sequences; options.activationBytes are what it keeps, or it is an
/// error.
Expected<StepBenchResult> benchSteps(Transformer &model, const dist::StrategyOptions &options, int64_t sequences,
                                     int64_t warmup, int64_t steps, dist::Transport &transport,
                                     dist::ComputeDevice &device);

} // namespace tilewright::train
