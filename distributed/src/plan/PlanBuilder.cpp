#include "PlanBuilder.h"
#include <fmt/format.h>

namespace tilewright::dist {

PlanBuilder::PlanBuilder(ArenaLayout layout, const StrategyOptions &options)
    : layout(std::move(layout)), options(options) {
  plan.strategy = toString(options.strategy);
  plan.worldSize = options.worldSize;
  plan.accumulation = options.accumulation;
  plan.parameters = this->layout.parameters;
  publishing.resize(this->layout.buckets.size());
}

int PlanBuilder::add(StepOp op) {
  plan.ops.push_back(std::move(op));
  return static_cast<int>(plan.ops.size()) - 1;
}

Span PlanBuilder::whole(int buffer) const {
  return {buffer, 0, plan.buffers[static_cast<size_t>(buffer)].elementsOn(0), Part::Whole};
}

StepPlan PlanBuilder::build() {
  addBuffers();
  addForward();
  addBackward();
  addNorms();
  addScale();
  addUpdates();
  addPublication();

  // Only now is it known what the host waits for of the step before: its parameters' arrival, and its gradients' last
  // use.
  for (size_t b = 0; b < layout.buckets.size(); ++b)
    for (int op : publishing[b])
      plan.ops[static_cast<size_t>(forwardOps[b])].waits.push_back({op, true});
  for (StepOp &op : plan.ops)
    if (op.kind == OpKind::Accumulate || op.kind == OpKind::Backward || op.kind == OpKind::Finish)
      op.waits.push_back(lastUpdate());
  return std::move(plan);
}

void PlanBuilder::addBuffers() {
  auto buffer = [&](std::string name, Category category, ElementType type, std::vector<int64_t> elements) {
    plan.buffers.push_back({std::move(name), category, type, std::move(elements)});
    return static_cast<int>(plan.buffers.size()) - 1;
  };
  std::vector<int64_t> state = {layout.elements};
  if (isZero1()) state = {layout.elements / options.worldSize};
  if (options.strategy == Strategy::Zero1Broadcast) {
    state.assign(static_cast<size_t>(options.worldSize), 0);
    for (size_t i = 0; i < layout.parameters.size(); ++i)
      state[static_cast<size_t>(ownerOf(static_cast<int>(i)))] += layout.parameters[i].elements();
  }
  parameters = buffer("parameters", Category::Parameters, options.parameterType, {layout.elements});
  gradients = buffer("gradients", Category::Gradients, options.gradientType, {layout.elements});
  reduced =
      converts() ? buffer("reduced", Category::Communication, options.reductionType, {layout.elements}) : gradients;
  if (options.parameterType != ElementType::F32)
    master = buffer("master", Category::OptimizerState, ElementType::F32, state);
  firstMoment = buffer("m", Category::OptimizerState, ElementType::F32, state);
  secondMoment = buffer("v", Category::OptimizerState, ElementType::F32, state);
  scalars = buffer("scalars", Category::Communication, ElementType::F64,
                   {options.hostSums + 1 + (options.globalNorm ? normSlots() : 0)});
  scale = buffer("scale", Category::Communication, ElementType::F64, {2});
  if (options.activationBytes)
    buffer("activations", Category::Activations, ElementType::F32, {(options.activationBytes + 3) / 4});
}

void PlanBuilder::addForward() {
  forwardOps.resize(layout.buckets.size());
  std::vector<Wait> after;
  for (size_t b = layout.buckets.size(); b-- > 0;) {
    StepOp op{fmt::format("forward.{}", b), OpKind::Forward, Lane::Host};
    op.uses = {{Access::Read, span(parameters, layout.buckets[b].begin, layout.buckets[b].count)}};
    forwardOps[b] = add(std::move(op));
    after.push_back({forwardOps[b]});
  }
  if (options.accumulation == 1) return;
  StepOp op{"accumulate", OpKind::Accumulate, Lane::Host};
  op.uses = {{Access::Read, whole(parameters)}, {Access::ReadWrite, whole(gradients)}};
  op.waits = std::move(after);
  accumulated.push_back({add(std::move(op))});
}

void PlanBuilder::addBackward() {
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket &bucket = layout.buckets[b];
    std::vector<Wait> ready;
    for (int p : bucket.parameters) {
      const PlanParameter &parameter = layout.parameters[static_cast<size_t>(p)];
      StepOp op{fmt::format("backward.{}", parameter.name), OpKind::Backward, Lane::Host};
      op.parameter = p;
      op.uses = {{Access::ReadWrite, span(gradients, parameter.begin, parameter.elements())}};
      op.waits = accumulated;
      backwardOps.push_back(add(std::move(op)));
      ready.push_back({backwardOps.back()});
      if (options.strategy == Strategy::Overlap)
        addReduction(parameter.name, parameter.begin, parameter.elements(), {ready.back()});
    }
    if (reducesDuringBackward() && options.strategy != Strategy::Overlap)
      addReduction(fmt::format("{}", b), bucket.begin, bucket.count, std::move(ready));
  }
  StepOp op{"finish", OpKind::Finish, Lane::Host};
  op.uses = {{Access::Read, whole(parameters)}, {Access::Write, hostScalars()}};
  for (int forward : forwardOps)
    op.waits.push_back({forward});
  for (int backward : backwardOps)
    op.waits.push_back({backward});
  finish = add(std::move(op));
  if (options.strategy == Strategy::Flat) addReduction("all", 0, layout.elements, {{finish}});
  if (options.strategy == Strategy::Naive)
    for (const Bucket &bucket : layout.buckets)
      for (int p : bucket.parameters) {
        const PlanParameter &parameter = layout.parameters[static_cast<size_t>(p)];
        addReduction(parameter.name, parameter.begin, parameter.elements(), {{finish}});
      }
}

void PlanBuilder::addReduction(const std::string &name, int64_t begin, int64_t count, std::vector<Wait> waits) {
  if (converts()) {
    StepOp op{"convert." + name, OpKind::Convert, Lane::Communication};
    op.uses = {{Access::Read, span(gradients, begin, count)}, {Access::Write, span(reduced, begin, count)}};
    op.waits = waits;
    add(std::move(op));
  }
  StepOp op{"reduce." + name, isZero1() ? OpKind::ReduceScatter : OpKind::AllReduce, Lane::Communication};
  op.uses = {{Access::ReadWrite, span(reduced, begin, count)}};
  op.waits = std::move(waits);
  add(std::move(op));
}

void PlanBuilder::addNorms() {
  if (!options.globalNorm) return;
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    StepOp op{fmt::format("norm.{}", b), OpKind::SquaredNorm, Lane::Communication};
    const Span slot =
        span(scalars, options.hostSums + 1 + static_cast<int64_t>(b) * options.worldSize, options.worldSize);
    op.uses = {{Access::Read,
                span(reduced, layout.buckets[b].begin, layout.buckets[b].count, isZero1() ? Part::Shard : Part::Whole)},
               {Access::Write, slot}};
    add(std::move(op));
  }
}

void PlanBuilder::addScale() {
  StepOp sum{"scalars", OpKind::AllReduce, Lane::Communication};
  // Summed gradients have one norm on all ranks; of shards each rank knows its own part, with zeros for the others'.
  sum.uses = {{Access::ReadWrite, isZero1() ? span(scalars, 0, options.hostSums + slots().count) : hostScalars()}};
  sum.waits = {{finish}};
  const int sumOp = add(std::move(sum));
  StepOp op{"scale", OpKind::Scale, Lane::Compute};
  op.uses = {{Access::Read, slots()}, {Access::Write, whole(scale)}};
  op.waits = {{sumOp}};
  scaleOp = add(std::move(op));
  // Only now is the slots' last reader known.
  for (StepOp &norm : plan.ops)
    if (norm.kind == OpKind::SquaredNorm) norm.waits = {{scaleOp, true}};
}

void PlanBuilder::addUpdate(const std::string &name, Span arena, Span state, int rank) {
  auto at = [&](int buffer, Span like) { return Span{buffer, like.begin, like.count, like.part}; };
  StepOp op{"update." + name, OpKind::AdamW, Lane::Compute};
  op.rank = rank;
  op.uses = {{Access::Read, at(reduced, arena)},
             {Access::Read, whole(scale)},
             {Access::ReadWrite, at(parameters, arena)},
             {Access::ReadWrite, at(firstMoment, state)},
             {Access::ReadWrite, at(secondMoment, state)}};
  if (master >= 0) op.uses.push_back({Access::ReadWrite, at(master, state)});
  op.waits = {{scaleOp}};
  updateOps.push_back(add(std::move(op)));
}

void PlanBuilder::addUpdates() {
  // The next forward starts with the last bucket to arrive: it goes first.
  std::vector<int64_t> used(static_cast<size_t>(options.worldSize), 0);
  for (size_t b = layout.buckets.size(); b-- > 0;) {
    const Bucket &bucket = layout.buckets[b];
    if (options.strategy != Strategy::Zero1Broadcast) {
      const int64_t cut = isZero1() ? options.worldSize : 1;
      addUpdate(fmt::format("{}", b), span(-1, bucket.begin, bucket.count, isZero1() ? Part::Shard : Part::Whole),
                span(-1, bucket.begin / cut, bucket.count / cut), -1);
      publishing[b] = {updateOps.back()};
      continue;
    }
    for (auto p = bucket.parameters.rbegin(); p != bucket.parameters.rend(); ++p) {
      const PlanParameter &parameter = layout.parameters[static_cast<size_t>(*p)];
      const int owner = ownerOf(*p);
      int64_t &at = used[static_cast<size_t>(owner)];
      addUpdate(parameter.name, span(-1, parameter.begin, parameter.elements()), span(-1, at, parameter.elements()),
                owner);
      at += parameter.elements();
      publishing[b].push_back(updateOps.back());
    }
  }
}

void PlanBuilder::addPublication() {
  if (!isZero1() && options.strategy != Strategy::Zero1Broadcast) return;
  for (size_t b = layout.buckets.size(); b-- > 0;) {
    std::vector<int> published;
    for (int update : publishing[b]) {
      const StepOp &from = plan.ops[static_cast<size_t>(update)];
      const Span &arena = from.uses[2].span;
      StepOp op{(isZero1() ? "gather." : "broadcast.") + from.name.substr(7),
                isZero1() ? OpKind::AllGather : OpKind::Broadcast, Lane::Communication};
      op.uses = {{Access::ReadWrite, span(parameters, arena.begin, arena.count)}};
      op.root = std::max(from.rank, 0);
      op.waits = {{update}};
      published.push_back(add(std::move(op)));
    }
    publishing[b] = std::move(published);
  }
}

} // namespace tilewright::dist
