// Everything one training step of a distributed engine does, as a plain value: named buffers, and the ordered list of
// kernels, collectives and copies over them, with the events between. All ranks hold the same plan; what differs by
// rank (whose shard, who sends) is spelled in terms of the rank. A strategy is a function that builds such a plan
// (Strategy.h); one StepExecutor runs any of them. The list is the step's; it repeats every step, so an op may wait for
// an op of the previous step.
#pragma once

#include "tilewright/tensor/ElementType.h"
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright::dist {

/// What memory is for.
enum class Category { Parameters, Gradients, OptimizerState, Activations, Communication };
constexpr int kCategories = 5;
std::string_view toString(Category category); ///< "parameters", "gradients", "optimizer state", ...

struct PlanBuffer {
  std::string name;
  Category category = Category::Communication;
  ElementType type = ElementType::F32;
  /// One number for all ranks, or one a rank.
  std::vector<int64_t> elements;

  int64_t elementsOn(int rank) const { return elements[elements.size() == 1 ? 0 : static_cast<size_t>(rank)]; }
  bool operator==(const PlanBuffer &) const = default;
};

/// A parameter's place in the arenas of parameters and gradients. Element i of the parameter is element begin + i.
struct PlanParameter {
  std::string name;
  std::vector<int64_t> shape;
  double weightDecay = 0; ///< AdamW's decoupled decay, before multiplication by the learning rate.
  int64_t begin = 0;

  int64_t elements() const;
  bool operator==(const PlanParameter &) const = default;
};

/// Elements [begin, begin + count) of a buffer. Of a Shard, rank r means its r-th of worldSize equal parts.
enum class Part { Whole, Shard };
struct Span {
  int buffer = -1;
  int64_t begin = 0, count = 0;
  Part part = Part::Whole;
  bool operator==(const Span &) const = default;
};

enum class Access { Read, Write, ReadWrite };
struct Use {
  Access access = Access::Read;
  Span span;
  bool operator==(const Use &) const = default;
};

/// What an op does, and the uses it has, in this order.
enum class OpKind {
  Forward,       ///< The host's forward pass starts to need: R parameters.
  Accumulate,    ///< The host's micro-batches but the last: R parameters, RW gradients.
  Backward,      ///< The host has added the last micro-batch to a gradient: RW gradient.
  Finish,        ///< The host has done all its work on the step's data: R parameters, W the host's sums and last its tokens (F64).
  Convert,       ///< R from, W to: element types differ.
  SquaredNorm,   ///< R summed gradients, W worldSize partial sums (F64): entry r belongs to shard r.
  Scale,         ///< R tokens and partial sums (F64), W [1 / tokens * clipping, norm of the mean gradient] (F64).
  AdamW,         ///< R gradients, R scale, RW parameters, RW m, RW v, and, if parameters are 16 bits, RW fp32 master.
  AllReduce,     ///< RW: the sum over ranks.
  ReduceScatter, ///< RW: rank r's shard becomes the sum over ranks, the rest undefined.
  AllGather,     ///< RW: every shard r becomes rank r's.
  Broadcast,     ///< RW: becomes the root's.
  Send,          ///< R: to rank + peer (modulo the world size).
  Receive,       ///< W: from rank + peer.
};
std::string_view toString(OpKind kind);
bool isHost(OpKind kind);       ///< Forward, Accumulate, Backward, Finish.
bool isCollective(OpKind kind); ///< AllReduce ... Broadcast.

/// Ops of one lane run one after another, in the plan's order; host ops in any order their waits allow.
enum class Lane { Host, Compute, Communication };
std::string_view toString(Lane lane);

struct Wait {
  int op = -1; ///< Index in the plan.
  bool previousStep = false;
  bool operator==(const Wait &) const = default;
};

struct StepOp {
  std::string name;
  OpKind kind = OpKind::Forward;
  Lane lane = Lane::Host;
  int rank = -1; ///< Runs on this rank only; -1 on all.
  std::vector<Use> uses = {};
  std::vector<Wait> waits = {};
  int root = 0;           ///< Broadcast.
  int peer = 0;           ///< Send, Receive: offset to the other rank.
  std::string group = {}; ///< Send, Receive: what must start together.
  int parameter = -1;     ///< Backward: index of the parameter.

  bool operator==(const StepOp &) const = default;
};

struct StepPlan {
  std::string strategy;
  int worldSize = 1;
  int accumulation = 1; ///< Micro-batches a step.
  std::vector<PlanParameter> parameters;
  std::vector<PlanBuffer> buffers;
  std::vector<StepOp> ops;

  bool operator==(const StepPlan &) const = default;

  /// Everything behaviour depends on, one fact a line.
  std::string canonicalText() const;
  /// SHA-256 of canonicalText(), 64 hex digits.
  std::string hash() const;
  /// canonicalText() with a head, and rank's bytes by category and by op: for people.
  std::string describe(int rank = 0) const;

  int bufferNamed(std::string_view name) const; ///< -1 if there is none.
  int opNamed(std::string_view name) const;     ///< -1 if there is none.
};

/// "gradients[0, 128)", "parameters[0, 256) shard".
std::string spanText(const StepPlan &plan, const Span &span);

/// Elements [begin, begin + count) of `span` that rank `rank` means.
Span partOf(const Span &span, int worldSize, int rank);

void to_json(nlohmann::json &json, const StepPlan &plan);
/// Unknown keys, wrong types and unknown names are errors that name the place. The plan is not checked (PlanCheck.h).
Expected<StepPlan> stepPlanFromJson(const nlohmann::json &json);

/// How `other` (rank `rank`'s) differs from `mine`, in one sentence with the first lines that differ; empty if equal.
std::string describeDifference(const std::string &mine, const std::string &other);

} // namespace tilewright::dist
