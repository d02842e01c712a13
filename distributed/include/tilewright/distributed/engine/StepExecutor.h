// Runs a StepPlan on a transport and a device. Communication has a thread of its own, which starts each op of its lane
// in the plan's order as soon as what it waits for is done; the compute lane runs on the thread that calls runCompute;
// the host's ops are what the host says is done. Steps repeat without end; an op knows which step it is in.
#pragma once

#include "tilewright/distributed/engine/ComputeDevice.h"
#include "tilewright/distributed/plan/PlanCost.h"
#include "tilewright/distributed/transport/Transport.h"
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace tilewright::dist {

/// Thread-safe. The first error stays: every later call returns it, and no thread waits any longer.
class StepExecutor {
public:
  /// Allocates the plan's buffers (all but activations, which are the host's). `transport` and `device` must outlive
  /// it. The plan must have passed checkPlan and be for the transport's world size.
  static Expected<std::unique_ptr<StepExecutor>> create(StepPlan plan, Transport &transport, ComputeDevice &device);
  /// In the middle of a step it tells the other ranks that this one gives up; between steps it lets communication end.
  ~StepExecutor();

  const StepPlan &plan() const { return stepPlan; }
  void *data(int buffer) const { return memory[static_cast<size_t>(buffer)]; }
  Operand operand(const Span &span) const; ///< This rank's part.
  /// What was allocated, by category: predictMemory's figures, if they are right.
  const MemoryByCategory &allocated() const { return allocatedBytes; }

  /// The step that the host works on, from 1.
  int64_t step() const;
  /// Waits until everything that a host op of this step waits for on other lanes is done.
  Status waitFor(int hostOp);
  /// The host has done its op of this step. An error if it had been done already.
  Status done(int hostOp);
  bool isDone(int op) const;
  /// Runs the compute lane of this step on this thread, then goes on to the next step.
  Status runCompute(const StepSettings &settings);
  /// Waits until communication of all finished steps is done.
  Status drain();
  Status status() const;
  /// The first error stays. The other ranks are told of one that did not come from the transport.
  void failWith(Error error);

private:
  StepExecutor(StepPlan plan, Transport &transport, ComputeDevice &device);
  Status allocate();
  bool travels(int buffer) const; ///< Whether a collective or message uses it.
  void communicate();
  /// Waits, runs, marks as done. False when the executor stops or fails.
  bool runOp(int op, int64_t step, const StepSettings *settings);
  bool waitUntilReady(const StepOp &op, int64_t step);
  /// The same for ops that the transport starts together.
  bool runGroup(std::span<const int> ops, int64_t step);
  /// Starts the op; record() and what finish() tells others come after.
  Status execute(int op, const StepSettings *settings);
  bool finish(std::span<const int> ops, int64_t step);

  const StepPlan stepPlan;
  Transport &transport;
  ComputeDevice &device;
  std::vector<void *> memory;
  MemoryByCategory allocatedBytes;
  std::vector<std::vector<DecayRange>> decay; ///< By op.

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<int64_t> doneSteps; ///< By op: the last step in which it was done.
  int64_t currentStep = 1;
  bool stopping = false;
  std::optional<Error> failure;
  std::thread communication;
};

} // namespace tilewright::dist
