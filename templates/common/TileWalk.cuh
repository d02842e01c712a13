// The order in which a block visits the tiles that its mask leaves non-empty. Two kinds of walk with one interface:
// next() returns the next visit, or one that is not valid() at the end. All state is the same in every thread, kept
// in registers; no shared memory and no barrier is involved.
#pragma once
#include "common/Types.cuh"

namespace tw {

struct TileVisit {
  int tile = -1;        ///< Index along the walked axis.
  int head = 0;         ///< Query head (only walks over a group of heads set it).
  bool partial = false; ///< The mask or a sequence end cuts through the tile: it must be applied.
  __device__ __forceinline__ bool valid() const { return tile >= 0; }
};

/// Tiles [first, last) may hold visible pairs; [fullFirst, fullLast) within them are visible as a whole.
struct TileSpan {
  int first, fullFirst, fullLast, last;
};

/// The share of part `part` of `Parts`: as many tiles as the others, but for one.
template <int Parts> __device__ __forceinline__ TileSpan partOf(TileSpan span, int part) {
  int tiles = max(span.last - span.first, 0), first = span.first;
  span.first = first + tiles * part / Parts;
  span.last = first + tiles * (part + 1) / Parts;
  return span;
}

/// Walk for masks whose visible tiles form one interval (none, causal, windows).
struct IntervalWalk {
  TileSpan span;
  int at;
  __device__ __forceinline__ explicit IntervalWalk(TileSpan span) : span(span), at(span.first) {}
  __device__ __forceinline__ TileVisit next() {
    TileVisit visit;
    if (at < span.last) {
      visit.tile = at;
      visit.partial = at < span.fullFirst || at >= span.fullLast;
      ++at;
    }
    return visit;
  }
};

/// What is known of one tile: can it hold a visible pair, and are all of its pairs visible?
struct TileClass {
  bool possible, certain;
};

/// A tile that crosses a sequence's end is never certain.
__device__ __forceinline__ TileClass insideOnly(bool inside, TileClass found) {
  return {found.possible, found.certain && inside};
}

/// Walk for any other mask, over tiles [first, tiles): `classify(tile, head)` is asked for 32 of them at once, one a lane.
template <class Classify> struct ClassifiedWalk {
  Classify classify;
  int tiles, head, chunk;
  UInt32 possible = 0, certain = 0;
  __device__ __forceinline__ ClassifiedWalk(int first, int tiles, int head, Classify classify)
      : classify(classify), tiles(tiles), head(head), chunk(first - 32) {}
  /// Takes over the position; both walks must have been made with the same `classify`.
  __device__ __forceinline__ ClassifiedWalk &operator=(const ClassifiedWalk &other) {
    tiles = other.tiles, head = other.head, chunk = other.chunk;
    possible = other.possible, certain = other.certain;
    return *this;
  }
  __device__ __forceinline__ TileVisit next() {
    TileVisit visit;
    while (possible == 0) {
      if (chunk + 32 >= tiles) return visit;
      chunk += 32;
      int tile = chunk + int(threadIdx.x % 32);
      TileClass found = {false, false};
      if (tile < tiles) found = classify(tile, head);
      possible = __ballot_sync(0xffffffffu, found.possible);
      certain = __ballot_sync(0xffffffffu, found.certain);
    }
    int bit = __ffs(int(possible)) - 1;
    possible &= possible - 1;
    visit.tile = chunk + bit;
    visit.partial = (certain >> bit & 1) == 0;
    return visit;
  }
};
template <class Classify> ClassifiedWalk(int, int, int, Classify) -> ClassifiedWalk<Classify>;

/// Chains the walks of query heads [first, last): what a kv tile of a grouped head visits. `walkOf(head)` makes one.
template <class WalkOf> struct GroupWalk {
  WalkOf walkOf;
  decltype(walkOf(0)) walk;
  int head, last;
  __device__ __forceinline__ GroupWalk(int first, int last, WalkOf walkOf)
      : walkOf(walkOf), walk(walkOf(first)), head(first), last(last) {}
  __device__ __forceinline__ TileVisit next() {
    TileVisit visit = walk.next();
    while (!visit.valid() && head + 1 < last) {
      ++head;
      walk = walkOf(head);
      visit = walk.next();
    }
    visit.head = head;
    return visit;
  }
};
template <class WalkOf> GroupWalk(int, int, WalkOf) -> GroupWalk<WalkOf>;

/// The visits whose copies are in flight, oldest first: one for each stage of a ring.
template <int Depth> struct VisitQueue {
  TileVisit visits[Depth];
  __device__ __forceinline__ const TileVisit &front() const { return visits[0]; }
  /// Drops the front; the last place becomes free.
  __device__ __forceinline__ void pop() {
#pragma unroll
    for (int i = 0; i + 1 < Depth; ++i)
      visits[i] = visits[i + 1];
    visits[Depth - 1] = TileVisit();
  }
};

} // namespace tw
