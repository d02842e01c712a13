// Which of a q tile's visits a warp group takes part in. The mask may hide from its 64 rows what the tile's other rows
// see, and show them whole what it cuts for others: each group walks its own rows, and lets the rest of the tile's visits
// pass.
#pragma once
#include "common/TileWalk.cuh"
#include "sm90/Barrier.cuh"

namespace tw {

/// The walk of a group's own rows, as IntervalWalk's. Before and after it lie visits of the tile's other rows.
struct GroupVisits {
  TileSpan own;
  int at, before, after;
  __device__ __forceinline__ GroupVisits(TileSpan tile, TileSpan rows) : own(rows) {
    own.first = max(rows.first, tile.first), own.last = min(rows.last, tile.last);
    if (own.first >= own.last) own.first = own.last = tile.last;
    at = own.first;
    before = own.first - tile.first;
    after = tile.last - own.last;
  }
  __device__ __forceinline__ TileVisit next() {
    TileVisit visit;
    if (at < own.last) {
      visit.tile = at;
      visit.partial = at < own.fullFirst || at >= own.fullLast;
      ++at;
    }
    return visit;
  }
};

/// Frees the slots of the tile's next `visits` visits unread. Where groups take turns, so does this one, without issuing
/// anything. Slots are waited for all the same: a barrier counts one round at a time.
template <bool TakesTurns, int Groups, int Slots>
__device__ __forceinline__ void passVisits(Ring<Slots> &ringK, Ring<Slots> &ringV, int visits, int group) {
#pragma unroll 1
  for (int i = 0; i < visits; ++i) {
    ringK.waitFull();
    if constexpr (TakesTurns) {
      syncNamed<256>(1 + group);
      arriveNamed<256>(1 + (group + 1) % Groups);
    }
    ringK.release();
    ringV.waitFull();
    ringV.release();
  }
}

} // namespace tw
