// What a plan costs: bytes over the network and bytes of memory, known before the first step.
#pragma once

#include "tilewright/distributed/plan/StepPlan.h"
#include <array>
#include <map>

namespace tilewright::dist {

/// Elements of `count` that rank `rank` owns when a collective cuts a span of any length into worldSize chunks: the
/// first count % worldSize chunks have one more.
struct Chunk {
  int64_t begin, count;
};
Chunk chunkOf(int64_t count, int worldSize, int rank);

/// Broadcasts of at most this many bytes go straight from the root to every rank; larger ones are scattered, then
/// gathered, so that the root sends about as much as everyone else.
constexpr int64_t kDirectBroadcastBytes = 64 << 10;

/// Payload bytes that `rank` sends in `op`; 0 for an op that sends nothing. With s bytes over N ranks: all-reduce
/// 2 (N-1)/N s, reduce-scatter and all-gather (N-1)/N s, a large broadcast 2 (N-1)/N s
/// from the root and (N-2)/N s from each other rank.
int64_t sentBytes(const StepPlan &plan, const StepOp &op, int rank);
int64_t sentBytes(OpKind kind, int64_t elements, int64_t elementBytes, int worldSize, int rank, int root);

struct Traffic {
  int64_t calls = 0;
  int64_t payloadBytes = 0; ///< Size of the spans.
  int64_t sentBytes = 0;
};
/// Of one step, by kind of communication.
std::map<OpKind, Traffic> predictTraffic(const StepPlan &plan, int rank);

struct MemoryByCategory {
  std::array<int64_t, kCategories> bytes{};
  int64_t total() const;
  int64_t of(Category category) const { return bytes[static_cast<size_t>(category)]; }
  bool operator==(const MemoryByCategory &) const = default;
};
MemoryByCategory predictMemory(const StepPlan &plan, int rank);

} // namespace tilewright::dist
