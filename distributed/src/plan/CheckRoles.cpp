#include "tilewright/distributed/plan/PlanCheck.h"
#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace tilewright::dist {
namespace {

tl::unexpected<Error> refuse(std::string message) { return fail(Stage::Plan, "plan: " + message); }

bool isTrained(ElementType type) { return type == ElementType::F32 || type == ElementType::BF16; }

/// The arena of this name: all of it on every rank.
Expected<int> arena(const StepPlan &plan, std::string_view name, Category category) {
  const int index = plan.bufferNamed(name);
  if (index < 0) return refuse(fmt::format("there is no buffer '{}'", name));
  const PlanBuffer &buffer = plan.buffers[static_cast<size_t>(index)];
  if (buffer.category != category)
    return refuse(fmt::format("buffer {} holds {}, expected {}", name, toString(buffer.category), toString(category)));
  if (!isTrained(buffer.type))
    return refuse(fmt::format("buffer {} is {}, expected float32 or bfloat16", name, toString(buffer.type)));
  if (std::any_of(buffer.elements.begin(), buffer.elements.end(),
                  [&](int64_t elements) { return elements != buffer.elementsOn(0); }))
    return refuse(fmt::format("buffer {} has another size on some ranks; all ranks hold all of it", name));
  return index;
}

Status checkParameterPlaces(const StepPlan &plan, const PlanBuffer &parameters, const PlanBuffer &gradients) {
  if (plan.parameters.empty()) return refuse("no parameters: expected at least one");
  std::map<int64_t, const PlanParameter *> ends; // of those with elements
  for (const PlanParameter &p : plan.parameters) {
    const int64_t elements = p.elements(), end = p.begin + elements;
    for (const PlanBuffer *buffer : {&parameters, &gradients})
      if (end > buffer->elementsOn(0))
        return refuse(fmt::format("parameter {} is [{}, {}), but {} has {} elements", p.name, p.begin, end,
                                  buffer->name, buffer->elementsOn(0)));
    if (elements == 0) continue;
    const auto next = ends.upper_bound(p.begin);
    if (next != ends.end() && next->second->begin < end)
      return refuse(fmt::format("parameters {} and {} lie on one another, from element {}", next->second->name, p.name,
                                std::max(next->second->begin, p.begin)));
    ends[end] = &p;
  }
  return {};
}

/// The host says once for each of its ops that it is done; every rank has the same host ops.
Status checkHostOps(const StepPlan &plan, int parameters, int gradients) {
  std::vector<int> backwards(plan.parameters.size());
  int accumulates = 0, scales = 0;
  for (const StepOp &op : plan.ops) {
    const bool everyRank = isHost(op.kind) || op.kind == OpKind::Scale;
    if (everyRank && op.rank >= 0)
      return refuse(
          fmt::format("{} {} runs on rank {} only; it belongs on all ranks", toString(op.kind), op.name, op.rank));
    accumulates += op.kind == OpKind::Accumulate;
    scales += op.kind == OpKind::Scale;
    if (op.kind == OpKind::Backward) {
      ++backwards[static_cast<size_t>(op.parameter)];
      if (op.uses[0].span.buffer != gradients || op.uses[0].span.part == Part::Shard)
        return refuse(
            fmt::format("backward {}: {} is no place of the gradients", op.name, spanText(plan, op.uses[0].span)));
    }
    if (op.kind == OpKind::Forward)
      for (const Use &use : op.uses)
        if (use.span.buffer != parameters)
          return refuse(fmt::format("forward {}: {} are no parameters", op.name, spanText(plan, use.span)));
  }
  if (scales != 1) return refuse(fmt::format("expected one scale op, found {}", scales));
  if (accumulates != 1 && (accumulates > 1 || plan.accumulation > 1))
    return refuse(fmt::format("{} micro-batches need one accumulate op, found {}", plan.accumulation, accumulates));
  for (size_t i = 0; i < backwards.size(); ++i)
    if (backwards[i] != 1)
      return refuse(
          fmt::format("parameter {}: expected one backward op, found {}", plan.parameters[i].name, backwards[i]));
  return {};
}

/// An update takes an element's gradient, moments and master weight from where they belong, and only its own.
Status checkUpdates(const StepPlan &plan, int parameters) {
  // (buffer, rank) -> begin -> (end, op): whose state lies where.
  std::map<std::pair<int, int>, std::map<int64_t, std::pair<int64_t, const StepOp *>>> state;
  for (const StepOp &op : plan.ops) {
    if (op.kind != OpKind::AdamW) continue;
    const Span &gradient = op.uses[0].span, &updated = op.uses[2].span;
    if (updated.buffer != parameters)
      return refuse(fmt::format("update {}: {} are no parameters", op.name, spanText(plan, updated)));
    if (!isTrained(plan.buffers[static_cast<size_t>(gradient.buffer)].type))
      return refuse(fmt::format("update {}: {} are neither float32 nor bfloat16", op.name, spanText(plan, gradient)));
    if (gradient.begin != updated.begin || gradient.count != updated.count || gradient.part != updated.part)
      return refuse(fmt::format("update {}: {} has the gradients of other elements than {}", op.name,
                                spanText(plan, gradient), spanText(plan, updated)));
    for (size_t use = 3; use < op.uses.size(); ++use) {
      const Span &span = op.uses[use].span;
      if (plan.buffers[static_cast<size_t>(span.buffer)].category != Category::OptimizerState)
        return refuse(fmt::format("update {}: {} is no optimizer state", op.name, spanText(plan, span)));
      for (int rank = 0; rank < plan.worldSize; ++rank) {
        if (op.rank >= 0 && op.rank != rank) continue;
        const Span part = partOf(span, plan.worldSize, rank);
        if (part.count == 0) continue;
        auto &places = state[{part.buffer, rank}];
        const auto after = places.lower_bound(part.begin + part.count);
        if (after != places.begin())
          if (const auto &[begin, place] = *std::prev(after); place.first > part.begin)
            return refuse(fmt::format("{} and {} both keep state in {} on rank {}", place.second->name, op.name,
                                      spanText(plan, part), rank));
        places[part.begin] = {part.begin + part.count, &op};
      }
    }
  }
  return {};
}

} // namespace

Status checkRoles(const StepPlan &plan) {
  Expected<int> parameters = arena(plan, "parameters", Category::Parameters);
  if (!parameters) return propagate(parameters);
  Expected<int> gradients = arena(plan, "gradients", Category::Gradients);
  if (!gradients) return propagate(gradients);
  auto buffer = [&](int index) -> const PlanBuffer & { return plan.buffers[static_cast<size_t>(index)]; };
  if (Status s = checkParameterPlaces(plan, buffer(*parameters), buffer(*gradients)); !s) return s;
  if (Status s = checkHostOps(plan, *parameters, *gradients); !s) return s;
  return checkUpdates(plan, *parameters);
}

} // namespace tilewright::dist
