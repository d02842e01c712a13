// The seam between a plan's executor and the machine: memory and the kernels of a step. On the host both are plain
// code; on a GPU lanes are streams and events are the driver's.
#pragma once

#include "tilewright/distributed/plan/StepPlan.h"
#include <memory>
#include <span>

namespace tilewright {
class ThreadPool;
}

namespace tilewright::dist {

/// AdamW of step `step` (from 1), with decoupled weight decay: Loshchilov and Hutter, arXiv 1711.05101. Per element,
/// with mean gradient g = sum / tokens, clipped:
///   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
///   p = p - lr decay p - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon).
struct StepSettings {
  double learningRate = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double maxNorm = 0; ///< The mean gradient is scaled down to this global norm; 0 leaves it.
  /// What a step does whose gradients' norm is not finite (known only with StrategyOptions::globalNorm): update anyway,
  /// leave everything as it was and go on, or leave everything and return an error.
  enum class NonFinite { Continue, Skip, Stop } nonFinite = NonFinite::Continue;
  int64_t step = 1;
};

/// Elements [begin, begin + count) of an update's span have this weight decay.
struct DecayRange {
  int64_t begin = 0, count = 0;
  double weightDecay = 0;
};

struct Operand {
  void *data = nullptr;
  int64_t elements = 0;
  ElementType type = ElementType::F32;
};

/// One kernel of a plan with its memory: the operands are the op's uses, in their order.
struct KernelCall {
  OpKind kind = OpKind::AdamW; ///< Convert, SquaredNorm, Scale, AdamW.
  std::span<const Operand> operands;
  std::span<const DecayRange> decay;      ///< AdamW; ascending, elements in none are padding.
  const StepSettings *settings = nullptr; ///< Scale, AdamW.
  int worldSize = 1;
  int shard = -1; ///< SquaredNorm: the operand is this shard only; -1: all shards, one after another.
};

/// Calls for different lanes may come from different threads at once.
class ComputeDevice {
public:
  virtual ~ComputeDevice() = default;

  /// Zeroed; lives as long as the device. `what` names it in the error.
  virtual Expected<void *> allocate(int64_t bytes, std::string_view what) = 0;
  virtual Status run(Lane lane, const KernelCall &call) = 0;
  /// Later work of `lane` starts after everything that record(op) followed on another lane.
  virtual Status wait(Lane lane, int op) = 0;
  virtual Status record(Lane lane, int op) = 0;
  /// Copies between device memory and the host's; clear fills with zeros. toHost returns when the copy is there, and
  /// comes after the compute lane's work so far; fromHost and clear are work of the host's lane, whose source may be
  /// reused at once.
  virtual Status toHost(void *to, const void *from, int64_t bytes) = 0;
  virtual Status fromHost(void *to, const void *from, int64_t bytes) = 0;
  virtual Status clear(void *data, int64_t bytes) = 0;
  /// Until all lanes' work so far is done.
  virtual Status synchronize() = 0;
};

/// The host's memory and cores. `pool`, if given, must outlive the device; results do not depend on its threads.
std::unique_ptr<ComputeDevice> hostDevice(ThreadPool *pool = nullptr);

} // namespace tilewright::dist
