// The host's interface to distributed training: register parameters, write gradients into the engine's memory, say when
// each is ready, finish the step. What is sent when is the plan's business (Strategy.h).
//
//   engine->parameter(i)                  write initial values (rank 0's count)
//   engine->start()
//   for each step:
//     for each micro-batch:
//       before parameter i is first used: engine->waitParameter(i)
//       its gradient: view = engine->gradient(i); write it, or add to it if view.add; engine->gradReady(i)
//       engine->endMicroBatch()
//     engine->finishStep(tokens, settings)
//
// Gradients are sums over this rank's tokens of the step; the engine divides by the tokens of all ranks. So ranks may
// have different numbers of tokens, or none, and splitting a batch into micro-batches changes nothing.
#pragma once

#include "tilewright/distributed/engine/StepExecutor.h"
#include "tilewright/distributed/plan/Strategy.h"
#include <atomic>

namespace tilewright::dist {

struct GradientView {
  void *data = nullptr; ///< In the gradients' arena: what is written here is what is reduced.
  int64_t elements = 0;
  ElementType type = ElementType::F32;
  bool add = false; ///< An earlier micro-batch of this step has written it.
};

struct StepReport {
  double tokens = 0;    ///< Of all ranks.
  double norm = 0;      ///< Global norm of the mean gradient before clipping; 0 without StrategyOptions::globalNorm.
  bool skipped = false; ///< The norm was not finite, and nothing was updated.
  std::vector<double> sums; ///< Of the host's own numbers over all ranks.
};

/// waitParameter, gradient and gradReady may be called from any thread, for different parameters at once; the others
/// from one thread at a time. After an error the engine stays failed. Destroying it between steps ends communication in
/// order; in the middle of a step it tells the other ranks.
class Engine {
public:
  /// `transport` and `device` must outlive the engine. Compares the plan, the version and the model over all ranks: a
  /// rank that differs is an error on all of them, which shows the first difference. options.worldSize is the
  /// transport's.
  static Expected<std::unique_ptr<Engine>> create(const ParameterList &parameters, StrategyOptions options,
                                                  Transport &transport, ComputeDevice &device);
  /// Of a plan of one's own; it is checked first.
  static Expected<std::unique_ptr<Engine>> create(StepPlan plan, Transport &transport, ComputeDevice &device);

  const StepPlan &plan() const { return executor->plan(); }
  StepExecutor &steps() { return *executor; }
  Transport &network() { return transport; }
  ComputeDevice &compute() { return device; }
  int parameters() const { return static_cast<int>(plan().parameters.size()); }

  /// Parameter i's values, in the plan's parameter type.
  Operand parameter(int i) const;
  /// Gives every rank the parameters of rank 0, and 16-bit parameters their fp32 master weights.
  Status start();
  /// Instead of start(): somebody else has given every rank its parameters and optimizer state of `updates` steps.
  void restored(int64_t updates);

  /// Blocks until parameter i has its values of this step.
  Status waitParameter(int i);
  GradientView gradient(int i) const;
  /// Of this micro-batch; in the last one the gradient may be sent from now on. A parameter that is never reported in a
  /// step counts with a gradient of zero.
  Status gradReady(int i);
  Status endMicroBatch();
  /// `tokens`: those of this rank in the whole step. May come before the last micro-batch: a rank with less data ends
  /// earlier. settings.step is filled in: updates made so far plus one.
  /// `sums` has StrategyOptions::hostSums numbers.
  Expected<StepReport> finishStep(double tokens, StepSettings settings, std::span<const double> sums = {});
  /// Until all parameters have the values of the last step.
  Status synchronize();

  int64_t updates() const { return updateCount; } ///< Steps that updated parameters.

private:
  Engine(Transport &transport, ComputeDevice &device) : transport(transport), device(device) {}
  Status compareWithOthers(const StepPlan &plan);
  void findOps();
  Status told(Status status);

  Transport &transport;
  ComputeDevice &device;
  std::unique_ptr<StepExecutor> executor;
  int parameterBuffer = -1, gradientBuffer = -1, finishOp = -1, accumulateOp = -1, scaleBuffer = -1;
  std::vector<int> forwardOps, backwardOps; ///< By parameter.
  std::vector<std::atomic<bool>> touched;
  std::atomic<int> microBatch{0};
  bool started = false;
  int64_t updateCount = 0;
};

} // namespace tilewright::dist
