#include "tilewright/distributed/plan/PlanCheck.h"
#include <fmt/format.h>
#include <map>
#include <optional>

namespace tilewright::dist {
namespace {

/// What the ranks hold of some elements.
struct Value {
  enum Kind {
    Undefined,  ///< Nobody holds anything of use.
    PerRank,    ///< Each rank its own addend of a sum.
    OnRank,     ///< The value is on one rank, the others hold something stale.
    Everywhere, ///< The same on all ranks.
  };
  Kind kind = Undefined;
  int rank = -1;
  bool operator==(const Value &) const = default;
};

std::string describe(const Value &value) {
  switch (value.kind) {
  case Value::Undefined:
    return "undefined";
  case Value::PerRank:
    return "not summed over the ranks";
  case Value::OnRank:
    return fmt::format("on rank {} only", value.rank);
  case Value::Everywhere:
    return "already the same on all ranks";
  }
  return {};
}

/// The values of one buffer's elements, as intervals: each key is where a value starts.
class ValueMap {
public:
  explicit ValueMap(Value all) { starts[0] = all; }

  void set(int64_t begin, int64_t end, Value value) {
    if (begin >= end) return;
    cut(end);
    cut(begin);
    starts.erase(starts.lower_bound(begin), starts.lower_bound(end));
    starts[begin] = value;
  }

  /// Calls visit(begin, end, value) for every interval within [begin, end) until it returns false.
  template <class Visit> void each(int64_t begin, int64_t end, Visit visit) const {
    if (begin >= end) return;
    for (auto it = std::prev(starts.upper_bound(begin)); it != starts.end() && it->first < end; ++it) {
      auto next = std::next(it);
      int64_t last = next == starts.end() ? end : std::min(end, next->first);
      if (!visit(std::max(begin, it->first), last, it->second)) return;
    }
  }

private:
  void cut(int64_t at) {
    auto it = std::prev(starts.upper_bound(at));
    if (it->first != at) starts[at] = it->second;
  }
  std::map<int64_t, Value> starts;
};

class Flow {
public:
  explicit Flow(const StepPlan &plan) : plan(plan) {
    for (const PlanBuffer &buffer : plan.buffers)
      values.emplace_back(Value{buffer.category == Category::Parameters ? Value::Everywhere : Value::Undefined});
  }

  Status run(const StepOp &op) {
    switch (op.kind) {
    case OpKind::Forward:
    case OpKind::Accumulate:
    case OpKind::Finish:
      for (const Use &use : op.uses)
        if (use.access == Access::Read) {
          Status status =
              expect(op, use.span, {Value::Everywhere}, "the forward and backward pass need it on all ranks",
                     "gather or broadcast it after its update");
          if (!status) return status;
        }
      for (const Use &use : op.uses)
        if (use.access != Access::Read) set(use.span, {Value::PerRank});
      return {};
    case OpKind::Backward:
      set(op.uses[0].span, {Value::PerRank});
      return {};
    case OpKind::Convert:
      copy(op.uses[0].span, op.uses[1].span);
      return {};
    case OpKind::SquaredNorm: {
      if (Status s = expectSummed(op, op.uses[0].span, "the norm is that of summed gradients"); !s) return s;
      set(op.uses[1].span, {op.uses[0].span.part == Part::Shard ? Value::PerRank : Value::Everywhere});
      return {};
    }
    case OpKind::Scale:
      if (Status s = expect(op, op.uses[0].span, {Value::Everywhere}, "tokens and norm must be those of all ranks",
                            "all-reduce them first");
          !s)
        return s;
      set(op.uses[1].span, {Value::Everywhere});
      return {};
    case OpKind::AdamW:
      return update(op);
    case OpKind::AllReduce:
      if (Status s = expect(op, op.uses[0].span, {Value::PerRank}, "a sum over ranks needs an addend of each", ""); !s)
        return s;
      set(op.uses[0].span, {Value::Everywhere});
      return {};
    case OpKind::ReduceScatter:
      if (Status s = expect(op, op.uses[0].span, {Value::PerRank}, "a sum over ranks needs an addend of each", ""); !s)
        return s;
      for (int rank = 0; rank < plan.worldSize; ++rank)
        set(shard(op.uses[0].span, rank), {Value::OnRank, rank});
      return {};
    case OpKind::AllGather:
      for (int rank = 0; rank < plan.worldSize; ++rank)
        if (Status s = expect(op, shard(op.uses[0].span, rank), {Value::OnRank, rank},
                              fmt::format("the gather takes it from rank {}", rank), "");
            !s)
          return s;
      set(op.uses[0].span, {Value::Everywhere});
      return {};
    case OpKind::Broadcast:
      if (Status s = expect(op, op.uses[0].span, {Value::OnRank, op.root},
                            fmt::format("the broadcast takes it from rank {}", op.root), "");
          !s)
        return s;
      set(op.uses[0].span, {Value::Everywhere});
      return {};
    case OpKind::Send:
      return {};
    case OpKind::Receive:
      set(op.uses[0].span, {Value::PerRank});
      return {};
    }
    return {};
  }

private:
  ValueMap &of(const Span &span) { return values[static_cast<size_t>(span.buffer)]; }
  void set(const Span &span, Value value) { of(span).set(span.begin, span.begin + span.count, value); }
  Span shard(Span span, int rank) const {
    span.part = Part::Shard;
    return partOf(span, plan.worldSize, rank);
  }

  /// Padding between parameters is zero on all ranks and stays so, summed or not.
  bool isPadding(const Span &span, int64_t begin, int64_t end) const {
    if (plan.buffers[static_cast<size_t>(span.buffer)].category == Category::OptimizerState) return false;
    for (const PlanParameter &p : plan.parameters)
      if (begin < p.begin + p.elements() && p.begin < end) return false;
    return true;
  }

  Status expect(const StepOp &op, const Span &span, Value wanted, const std::string &why, const std::string &hint) {
    std::optional<Error> error;
    of(span).each(span.begin, span.begin + span.count, [&](int64_t begin, int64_t end, const Value &value) {
      if (value == wanted || isPadding(span, begin, end)) return true;
      error = Error{Stage::Plan,
                    fmt::format("plan: {} {}: {} is {} there, but {}", toString(op.kind), op.name,
                                spanText(plan, {span.buffer, begin, end - begin, Part::Whole}), describe(value), why),
                    hint,
                    {}};
      return false;
    });
    if (error) return tl::unexpected<Error>(std::move(*error));
    return {};
  }

  /// The reader has the sum: on all ranks, or, of a shard or on one rank, at least there.
  Status expectSummed(const StepOp &op, const Span &span, const std::string &why) {
    for (int rank = 0; rank < plan.worldSize; ++rank) {
      if (op.rank >= 0 && op.rank != rank) continue;
      const Span part = partOf(span, plan.worldSize, rank);
      std::optional<Error> error;
      of(part).each(part.begin, part.begin + part.count, [&](int64_t begin, int64_t end, const Value &value) {
        if (value.kind == Value::Everywhere || value == Value{Value::OnRank, rank}) return true;
        if (isPadding(part, begin, end)) return true;
        error = Error{Stage::Plan,
                      fmt::format("plan: {} {} on rank {}: {} is {} there, but {}", toString(op.kind), op.name, rank,
                                  spanText(plan, {part.buffer, begin, end - begin, Part::Whole}), describe(value), why),
                      "reduce it first",
                      {}};
        return false;
      });
      if (error) return tl::unexpected<Error>(std::move(*error));
    }
    return {};
  }

  Status update(const StepOp &op) {
    if (Status s = expectSummed(op, op.uses[0].span, "an update needs the sum over all ranks"); !s) return s;
    const Span &parameters = op.uses[2].span;
    if (op.rank >= 0)
      set(parameters, {Value::OnRank, op.rank});
    else if (parameters.part == Part::Whole)
      set(parameters, {Value::Everywhere});
    else
      for (int rank = 0; rank < plan.worldSize; ++rank)
        set(partOf(parameters, plan.worldSize, rank), {Value::OnRank, rank});
    return {};
  }

  void copy(const Span &from, const Span &to) {
    std::vector<std::pair<Span, Value>> found;
    of(from).each(from.begin, from.begin + from.count, [&](int64_t begin, int64_t end, const Value &value) {
      found.push_back({{to.buffer, to.begin + begin - from.begin, end - begin, Part::Whole}, value});
      return true;
    });
    for (auto &[span, value] : found)
      set(span, value);
  }

  const StepPlan &plan;
  std::vector<ValueMap> values;
};

/// Each element of each parameter is updated exactly once a step; the state that goes with it lies on one place only.
Status checkCoverage(const StepPlan &plan) {
  std::map<int64_t, std::pair<int64_t, const StepOp *>> updated; // begin -> (end, op)
  for (const StepOp &op : plan.ops) {
    if (op.kind != OpKind::AdamW) continue;
    const Span &span = op.uses[2].span;
    if (span.count == 0) continue;
    auto after = updated.lower_bound(span.begin + span.count);
    if (after != updated.begin())
      if (auto last = std::prev(after); last->second.first > span.begin)
        return fail(Stage::Plan, fmt::format("plan: {} and {} both update parameters[{}, {})",
                                             last->second.second->name, op.name, std::max(last->first, span.begin),
                                             std::min(last->second.first, span.begin + span.count)));
    updated[span.begin] = {span.begin + span.count, &op};
  }
  for (const PlanParameter &p : plan.parameters) {
    int64_t at = p.begin;
    const int64_t end = p.begin + p.elements();
    while (at < end) {
      auto it = updated.upper_bound(at);
      if (it == updated.begin() || std::prev(it)->second.first <= at) {
        int64_t gap = it == updated.end() ? end : std::min(end, it->first);
        return fail(Stage::Plan, fmt::format("plan: elements [{}, {}) of parameter {} are updated by no rank",
                                             at - p.begin, gap - p.begin, p.name));
      }
      at = std::prev(it)->second.first;
    }
  }
  return {};
}

} // namespace

Status checkFlow(const StepPlan &plan) {
  if (Status status = checkCoverage(plan); !status) return status;
  Flow flow(plan);
  for (int step = 0; step < 2; ++step)
    for (const StepOp &op : plan.ops)
      if (Status status = flow.run(op); !status) return status;
  return {};
}

} // namespace tilewright::dist
