#include "tilewright/distributed/plan/PlanCost.h"
#include <numeric>

namespace tilewright::dist {

Chunk chunkOf(int64_t count, int worldSize, int rank) {
  const int64_t base = count / worldSize, longer = count % worldSize;
  return {base * rank + std::min<int64_t>(rank, longer), base + (rank < longer ? 1 : 0)};
}

int64_t sentBytes(OpKind kind, int64_t elements, int64_t elementBytes, int worldSize, int rank, int root) {
  if (worldSize == 1) return 0;
  const int64_t own = chunkOf(elements, worldSize, rank).count, others = worldSize - 1;
  int64_t sent = 0;
  switch (kind) {
  case OpKind::AllReduce:
    sent = (elements - own) + others * own;
    break;
  case OpKind::ReduceScatter:
    sent = elements - own;
    break;
  case OpKind::AllGather:
    sent = others * own;
    break;
  case OpKind::Broadcast:
    if (elements * elementBytes <= kDirectBroadcastBytes)
      sent = rank == root ? others * elements : 0;
    else // the root sends each rank its chunk, then everyone his own to those who lack it
      sent = rank == root ? elements - own + others * own : (others - 1) * own;
    break;
  case OpKind::Send:
    sent = elements;
    break;
  default:
    break;
  }
  return sent * elementBytes;
}

int64_t sentBytes(const StepPlan &plan, const StepOp &op, int rank) {
  if (!(isCollective(op.kind) || op.kind == OpKind::Send) || op.uses.empty()) return 0;
  if (op.rank >= 0 && op.rank != rank) return 0;
  const Span &span = op.uses.front().span;
  return sentBytes(op.kind, span.count, sizeInBytes(plan.buffers[static_cast<size_t>(span.buffer)].type),
                   plan.worldSize, rank, op.root);
}

std::map<OpKind, Traffic> predictTraffic(const StepPlan &plan, int rank) {
  std::map<OpKind, Traffic> traffic;
  for (const StepOp &op : plan.ops) {
    if (op.kind < OpKind::AllReduce || op.uses.empty() || (op.rank >= 0 && op.rank != rank)) continue;
    const Span &span = op.uses.front().span;
    Traffic &t = traffic[op.kind];
    ++t.calls;
    t.payloadBytes += span.count * sizeInBytes(plan.buffers[static_cast<size_t>(span.buffer)].type);
    t.sentBytes += sentBytes(plan, op, rank);
  }
  return traffic;
}

int64_t MemoryByCategory::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

MemoryByCategory predictMemory(const StepPlan &plan, int rank) {
  MemoryByCategory memory;
  for (const PlanBuffer &buffer : plan.buffers)
    memory.bytes[static_cast<size_t>(buffer.category)] += buffer.elementsOn(rank) * sizeInBytes(buffer.type);
  return memory;
}

} // namespace tilewright::dist
