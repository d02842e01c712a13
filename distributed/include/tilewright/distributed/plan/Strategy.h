// Strategies of data-parallel training: pure functions from a list of parameters and options to a StepPlan.
#pragma once

#include "tilewright/distributed/plan/StepPlan.h"

namespace tilewright::dist {

enum class Strategy {
  Naive,          ///< One all-reduce a parameter, after backward.
  Flat,           ///< One all-reduce of everything, after backward.
  Overlap,        ///< One all-reduce a parameter, started when its gradient is ready.
  Bucketed,       ///< One all-reduce a bucket, started when its gradients are ready.
  Zero1Broadcast, ///< As bucketed, but parameter i is updated by rank i modulo N alone, which broadcasts it.
  Zero1,          ///< Reduce-scatter a bucket during backward, update the own shard, all-gather under the next forward.
};
std::string_view toString(Strategy strategy); ///< "naive", "flat", "overlap", "bucketed", "zero1-broadcast", "zero1"
Expected<Strategy> parseStrategy(std::string_view text);
std::vector<Strategy> allStrategies();

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  double weightDecay = 0;
};
/// In the order in which forward uses them; gradients are expected in the reverse order.
using ParameterList = std::vector<ParameterSpec>;

struct StrategyOptions {
  Strategy strategy = Strategy::Zero1;
  int worldSize = 1;
  /// A bucket is closed before it would hold more bytes of reduced gradients; a larger parameter gets one of its own.
  int64_t bucketBytes = int64_t{25} << 20;
  ElementType parameterType = ElementType::F32; ///< F32, or BF16 with fp32 master weights.
  ElementType gradientType = ElementType::F32;  ///< What the host writes and accumulates: F32 or BF16.
  ElementType reductionType = ElementType::F32; ///< What travels: F32 or BF16. Transports say how it is summed.
  int accumulation = 1;                         ///< Micro-batches a step.
  bool globalNorm = true;      ///< Compute the gradients' norm: needed for clipping; updates wait for all gradients.
  int hostSums = 0;            ///< Numbers of the host that are summed over the ranks with the tokens: a loss, say.
  int64_t activationBytes = 0; ///< The host's own estimate, for memory accounting only.
};

/// Parameters start at multiples of this many elements, so that vector loads are aligned.
constexpr int64_t kParameterAlignment = 64;

/// Arenas hold the parameters in reverse order, bucket after bucket. Every bucket's end is padded so that its length is
/// a multiple of worldSize * 64 elements: rank r's shard of it is its r-th part. All strategies share this layout.
/// Errors: no parameters, equal names, negative or too large shapes, unsupported types; each names the parameter.
Expected<StepPlan> buildPlan(const ParameterList &parameters, const StrategyOptions &options);

} // namespace tilewright::dist
