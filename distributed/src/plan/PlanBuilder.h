// Assembles the plan of a data-parallel strategy: buffers first, then the parts of a step, in their order.
#pragma once

#include "ArenaLayout.h"

namespace tilewright::dist {

class PlanBuilder {
public:
  PlanBuilder(ArenaLayout layout, const StrategyOptions &options);
  StepPlan build();

private:
  bool isZero1() const { return options.strategy == Strategy::Zero1; }
  bool reducesDuringBackward() const {
    return options.strategy != Strategy::Naive && options.strategy != Strategy::Flat;
  }
  bool converts() const { return options.gradientType != options.reductionType; }
  int ownerOf(int parameter) const { return parameter % options.worldSize; }

  void addBuffers();
  /// Forward per bucket, then the micro-batches before the last.
  void addForward();
  /// The gradients' arrival, with reductions behind them as the strategy has it.
  void addBackward();
  void addReduction(const std::string &name, int64_t begin, int64_t count, std::vector<Wait> waits);
  void addNorms();
  void addScale();
  void addUpdates();
  void addUpdate(const std::string &name, Span arena, Span state, int rank);
  void addPublication();
  int add(StepOp op);

  Span whole(int buffer) const;
  Span span(int buffer, int64_t begin, int64_t count, Part part = Part::Whole) const {
    return {buffer, begin, count, part};
  }
  /// What the host sums over ranks: its own numbers, then the tokens.
  Span hostScalars() const { return span(scalars, 0, options.hostSums + 1); }
  /// What decides the scale: tokens and norms.
  Span slots() const { return span(scalars, options.hostSums, options.globalNorm ? 1 + normSlots() : 1); }
  int64_t normSlots() const { return static_cast<int64_t>(layout.buckets.size()) * options.worldSize; }
  Wait lastUpdate() const { return {updateOps.back(), true}; }

  ArenaLayout layout;
  StrategyOptions options;
  StepPlan plan;
  int parameters = -1, gradients = -1, reduced = -1, master = -1, firstMoment = -1, secondMoment = -1, scalars = -1,
      scale = -1;
  int finish = -1, scaleOp = -1;
  std::vector<Wait> accumulated; ///< What the last micro-batch's gradients come after, if there are others.
  std::vector<int> forwardOps, backwardOps, updateOps;
  std::vector<std::vector<int>> publishing; ///< By bucket: what makes its new parameters known to all ranks.
};

} // namespace tilewright::dist
