#include "tilewright/distributed/plan/StepPlan.h"
#include "PlanNames.h"
#include "tilewright/distributed/plan/PlanCost.h"
#include "tilewright/plan/KernelPlan.h"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <numeric>
#include <sstream>

namespace tilewright::dist {

std::string_view toString(Category category) { return nameOf(kCategoryNames, category); }
std::string_view toString(OpKind kind) { return nameOf(kOpNames, kind); }
std::string_view toString(Lane lane) { return nameOf(kLaneNames, lane); }

bool isHost(OpKind kind) { return kind <= OpKind::Finish; }
bool isCollective(OpKind kind) { return kind >= OpKind::AllReduce && kind <= OpKind::Broadcast; }

int64_t PlanParameter::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Span partOf(const Span &span, int worldSize, int rank) {
  if (span.part == Part::Whole) return span;
  int64_t count = span.count / worldSize;
  return {span.buffer, span.begin + count * rank, count, Part::Whole};
}

std::string spanText(const StepPlan &plan, const Span &span) {
  bool known = span.buffer >= 0 && span.buffer < static_cast<int>(plan.buffers.size());
  return fmt::format("{}[{}, {}){}", known ? plan.buffers[static_cast<size_t>(span.buffer)].name : "?", span.begin,
                     static_cast<int64_t>(static_cast<uint64_t>(span.begin) + static_cast<uint64_t>(span.count)),
                     span.part == Part::Shard ? " shard" : "");
}

namespace {

std::string opLine(const StepPlan &plan, const StepOp &op) {
  std::string line = fmt::format("{} {} on {}", toString(op.kind), op.name, toString(op.lane));
  if (op.rank >= 0) line += fmt::format(" of rank {}", op.rank);
  if (op.kind == OpKind::Broadcast) line += fmt::format(" from rank {}", op.root);
  if (op.kind == OpKind::Send || op.kind == OpKind::Receive)
    line += fmt::format(" {} rank {:+d} in group {}", op.kind == OpKind::Send ? "to" : "from", op.peer, op.group);
  if (op.parameter >= 0) line += fmt::format(" parameter {}", op.parameter);
  for (const Use &use : op.uses)
    line += fmt::format(" {} {}", nameOf(kAccessNames, use.access), spanText(plan, use.span));
  for (const Wait &wait : op.waits)
    line +=
        fmt::format(" after {}{}", plan.ops[static_cast<size_t>(wait.op)].name, wait.previousStep ? "@previous" : "");
  return line;
}

int indexOf(std::string_view name, const auto &list) {
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i].name == name) return static_cast<int>(i);
  return -1;
}

} // namespace

int StepPlan::bufferNamed(std::string_view name) const { return indexOf(name, buffers); }
int StepPlan::opNamed(std::string_view name) const { return indexOf(name, ops); }

std::string StepPlan::canonicalText() const {
  std::string text = fmt::format("strategy={}\nworld size={}\naccumulation={}\n", strategy, worldSize, accumulation);
  for (const PlanParameter &p : parameters)
    text += fmt::format("parameter {} ({}) at {} weight decay {}\n", p.name, fmt::join(p.shape, ", "), p.begin,
                        p.weightDecay);
  for (const PlanBuffer &b : buffers)
    text += fmt::format("buffer {} {} {} for {}\n", b.name, toString(b.type), fmt::join(b.elements, " "),
                        toString(b.category));
  for (const StepOp &op : ops)
    text += opLine(*this, op) + "\n";
  return text;
}

std::string StepPlan::hash() const { return sha256Hex(canonicalText()); }

std::string StepPlan::describe(int rank) const {
  std::string text = fmt::format("plan {} for {} ranks, {} parameters, {} ops, hash {}\n\nBUFFERS on rank {}\n",
                                 strategy, worldSize, parameters.size(), ops.size(), hash().substr(0, 16), rank);
  for (const PlanBuffer &b : buffers)
    text += fmt::format("  {:<14} {:<9} {:>14} elements {:>16} bytes  {}\n", b.name, toString(b.type),
                        b.elementsOn(rank), b.elementsOn(rank) * sizeInBytes(b.type), toString(b.category));
  text += fmt::format("\nOPS (bytes: what rank {} sends)\n", rank);
  for (size_t i = 0; i < ops.size(); ++i) {
    const int64_t sent = sentBytes(*this, ops[i], rank);
    text += fmt::format("  {:>4}  {:>12}  {}\n", i, sent ? fmt::format("{}", sent) : "", opLine(*this, ops[i]));
  }
  text += fmt::format("\nMEMORY on rank {}\n", rank);
  const MemoryByCategory memory = predictMemory(*this, rank);
  for (int c = 0; c < kCategories; ++c)
    text += fmt::format("  {:<16} {:>16} bytes\n", toString(static_cast<Category>(c)),
                        memory.bytes[static_cast<size_t>(c)]);
  text += fmt::format("\nTRAFFIC of rank {} in a step\n", rank);
  for (const auto &[kind, traffic] : predictTraffic(*this, rank))
    text += fmt::format("  {:<16} {:>6} calls {:>16} bytes sent\n", toString(kind), traffic.calls, traffic.sentBytes);
  return text;
}

std::string describeDifference(const std::string &mine, const std::string &other) {
  std::istringstream left(mine), right(other);
  std::string a, b;
  for (int line = 1;; ++line) {
    const bool hasA = static_cast<bool>(std::getline(left, a)), hasB = static_cast<bool>(std::getline(right, b));
    if (!hasA && !hasB) return {};
    if (hasA && hasB && a == b) continue;
    auto shown = [](bool has, const std::string &text) {
      return !has ? std::string("nothing more") : "'" + (text.size() > 300 ? text.substr(0, 300) + "..." : text) + "'";
    };
    return fmt::format("line {}: {} against {}", line, shown(hasA, a), shown(hasB, b));
  }
}

} // namespace tilewright::dist
