// How long a training step takes under a strategy, and where: for benchmarks.
#pragma once

#include "tilewright/distributed/transport/Transport.h"
#include "tilewright/train/AllocatedMemory.h"

namespace tilewright::train {

/// A transport that another does the work of, timed.
class TimedTransport final : public dist::Transport {
public:
  explicit TimedTransport(dist::Transport &inner) : inner(inner) {}
  int rank() const override { return inner.rank(); }
  int worldSize() const override { return inner.worldSize(); }
  std::string_view name() const override { return inner.name(); }
  Status run(const dist::Collective &collective) override;
  Status beginGroup() override { return inner.beginGroup(); }
  Status endGroup() override { return inner.endGroup(); }
  Expected<void *> allocate(int64_t bytes, std::string_view what) override { return inner.allocate(bytes, what); }
  Status status() override { return inner.status(); }
  Expected<std::vector<std::string>> exchange(const std::string &text) override { return inner.exchange(text); }
  void abort(const std::string &reason) override { inner.abort(reason); }
  int64_t sentBytes() const override { return inner.sentBytes(); }

  double seconds = 0; ///< In run(), since the last reset. Read it between steps only.
  int64_t calls = 0;

private:
  dist::Transport &inner;
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
