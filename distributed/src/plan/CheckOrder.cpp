#include "tilewright/distributed/plan/PlanCheck.h"
#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <map>
#include <set>

namespace tilewright::dist {
namespace {

/// Which ops are known to have ended when another starts. Ops of two consecutive steps: index = step * ops + op.
class HappensBefore {
public:
  explicit HappensBefore(const StepPlan &plan)
      : count(static_cast<int>(plan.ops.size())), words((2 * plan.ops.size() + 63) / 64),
        bits(2 * plan.ops.size() * words) {
    std::array<int, 3> last = {-1, -1, -1};
    for (int node = 0; node < 2 * count; ++node) {
      const StepOp &op = plan.ops[static_cast<size_t>(node % count)];
      const int step = node / count;
      for (const Wait &wait : op.waits)
        if (int from = (wait.previousStep ? step - 1 : step) * count + wait.op; from >= 0) add(node, from);
      if (op.lane == Lane::Host) continue;
      int &before = last[static_cast<size_t>(op.lane)];
      if (before >= 0) add(node, before);
      before = node;
    }
  }

  /// Whether the earlier node has ended when the later one starts.
  bool ordered(int earlier, int later) const {
    return bits[static_cast<size_t>(later) * words + static_cast<size_t>(earlier) / 64] >> (earlier % 64) & 1;
  }

private:
  void add(int node, int before) {
    uint64_t *row = &bits[static_cast<size_t>(node) * words];
    const uint64_t *from = &bits[static_cast<size_t>(before) * words];
    for (size_t w = 0; w < words; ++w)
      row[w] |= from[w];
    row[before / 64] |= uint64_t{1} << (before % 64);
  }

  int count;
  size_t words;
  std::vector<uint64_t> bits;
};

bool overlap(const Span &a, const Span &b) { return a.begin < b.begin + b.count && b.begin < a.begin + a.count; }

struct Touch {
  int node;
  const Use *use;
};

std::string nodeName(const StepPlan &plan, int node) {
  const int count = static_cast<int>(plan.ops.size());
  const StepOp &op = plan.ops[static_cast<size_t>(node % count)];
  return fmt::format("{} {}{}", toString(op.kind), op.name, node >= count ? " of the next step" : "");
}

Status checkRaces(const StepPlan &plan, const HappensBefore &before) {
  const int count = static_cast<int>(plan.ops.size());
  std::vector<std::vector<Touch>> touches(plan.buffers.size());
  for (int node = 0; node < 2 * count; ++node)
    for (const Use &use : plan.ops[static_cast<size_t>(node % count)].uses)
      touches[static_cast<size_t>(use.span.buffer)].push_back({node, &use});
  for (const std::vector<Touch> &list : touches)
    for (size_t later = 0; later < list.size(); ++later)
      for (size_t earlier = 0; earlier < later; ++earlier) {
        const Touch &a = list[earlier], &b = list[later];
        if (a.node == b.node || (a.use->access == Access::Read && b.use->access == Access::Read)) continue;
        if (!overlap(a.use->span, b.use->span) || before.ordered(a.node, b.node)) continue;
        return fail(Stage::Plan,
                    fmt::format("plan: race: {} {} {}, and no event path leads to it from {}, which {} {}",
                                nodeName(plan, b.node), b.use->access == Access::Read ? "reads" : "writes",
                                spanText(plan, b.use->span), nodeName(plan, a.node),
                                a.use->access == Access::Read ? "reads" : "writes", spanText(plan, a.use->span)),
                    fmt::format("let {} wait for {}", plan.ops[static_cast<size_t>(b.node % count)].name,
                                plan.ops[static_cast<size_t>(a.node % count)].name));
      }
  return {};
}

Status checkCollectives(const StepPlan &plan, const HappensBefore &before) {
  const int count = static_cast<int>(plan.ops.size());
  int last = -1;
  for (int node = 0; node < 2 * count; ++node) {
    const StepOp &op = plan.ops[static_cast<size_t>(node % count)];
    if (!isCollective(op.kind)) continue;
    if (op.rank >= 0)
      return fail(Stage::Plan, fmt::format("plan: {} {} runs on rank {} only; the other ranks would leave it waiting",
                                           toString(op.kind), op.name, op.rank));
    if (last >= 0 && !before.ordered(last, node))
      return fail(
          Stage::Plan,
          fmt::format("plan: collectives {} and {} have no order: ranks could start them differently and wait for "
                      "each other for ever",
                      nodeName(plan, last), nodeName(plan, node)),
          "put them on one lane, or let one wait for the other");
    last = node;
  }
  return {};
}

Status checkMessages(const StepPlan &plan) {
  struct End {
    const StepOp *op;
    bool matched = false;
  };
  // (group, sender, receiver) -> ends in list order; the n-th send meets the n-th receive.
  std::map<std::tuple<std::string, int, int>, std::pair<std::vector<End>, std::vector<End>>> channels;
  for (const StepOp &op : plan.ops) {
    if (op.kind != OpKind::Send && op.kind != OpKind::Receive) continue;
    for (int rank = 0; rank < plan.worldSize; ++rank) {
      if (op.rank >= 0 && op.rank != rank) continue;
      const int other = ((rank + op.peer) % plan.worldSize + plan.worldSize) % plan.worldSize;
      if (op.kind == OpKind::Send)
        channels[{op.group, rank, other}].first.push_back({&op});
      else
        channels[{op.group, other, rank}].second.push_back({&op});
    }
  }
  for (auto &[key, ends] : channels) {
    const auto &[group, from, to] = key;
    auto &[sends, receives] = ends;
    if (sends.size() != receives.size()) {
      const bool noReceive = sends.size() > receives.size();
      const StepOp &alone = *(noReceive ? sends[receives.size()] : receives[sends.size()]).op;
      return fail(Stage::Plan,
                  fmt::format("plan: {} {} from rank {} to rank {} has no {} in group '{}'", toString(alone.kind),
                              alone.name, from, to, noReceive ? "receive" : "send", group),
                  "a send and its receive must be in one group");
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      const Span &a = sends[i].op->uses[0].span, &b = receives[i].op->uses[0].span;
      auto bytes = [&](const Span &s) {
        return s.count * sizeInBytes(plan.buffers[static_cast<size_t>(s.buffer)].type);
      };
      if (bytes(a) != bytes(b))
        return fail(Stage::Plan, fmt::format("plan: send {} has {} bytes, its receive {} has {}", sends[i].op->name,
                                             bytes(a), receives[i].op->name, bytes(b)));
    }
  }
  return {};
}

/// A group's ops start when the group ends: none can need that another is done, and nothing can be in between.
Status checkGroups(const StepPlan &plan) {
  std::set<std::string_view> ended;
  std::string_view open;
  std::vector<bool> after(plan.ops.size()); // Whether it needs that an op of the open group is done.
  bool computeAfter = false;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const StepOp &op = plan.ops[i];
    auto refuse = [&](std::string_view what) {
      return fail(Stage::Plan,
                  fmt::format("plan: {} {} of group '{}': {}", toString(op.kind), op.name, op.group, what));
    };
    bool needs = std::any_of(op.waits.begin(), op.waits.end(), [&](const Wait &wait) {
      return !wait.previousStep && after[static_cast<size_t>(wait.op)];
    });
    if (op.lane == Lane::Compute) needs = computeAfter |= needs;
    if (op.lane != Lane::Communication) {
      if (!op.group.empty()) return refuse("only communication has groups");
      after[i] = needs;
      continue;
    }
    if (op.group != open) {
      ended.insert(open);
      open = op.group;
      after.assign(plan.ops.size(), false);
      needs = computeAfter = false;
      if (!open.empty() && ended.contains(open)) return refuse("another op of the lane is in the middle of the group");
    }
    if (open.empty()) continue;
    if (op.kind < OpKind::AllReduce) return refuse("only communication has groups");
    if (needs) return refuse("it waits for an op of its own group, which does not start before it");
    after[i] = true;
  }
  return {};
}

} // namespace

Status checkOrder(const StepPlan &plan) {
  if (Status status = checkMessages(plan); !status) return status;
  if (Status status = checkGroups(plan); !status) return status;
  HappensBefore before(plan);
  if (Status status = checkCollectives(plan, before); !status) return status;
  return checkRaces(plan, before);
}

Status checkPlan(const StepPlan &plan) {
  if (Status status = checkStructure(plan); !status) return status;
  if (Status status = checkRoles(plan); !status) return status;
  if (Status status = checkOrder(plan); !status) return status;
  return checkFlow(plan);
}

} // namespace tilewright::dist
