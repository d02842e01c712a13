// Element and row operations on tiles in panel layout: softmax forward and backward, score and mask functions, scaling.
// `from` and `to` may be the same tile.
#pragma once

#include "InlineFunction.h"
#include "TileStorage.h"

namespace tilewright::cpu {

/// Online softmax (Milakov and Gimelshein 2018), all in place:
///   m' = max(m, rowmax s), p = exp(s - m'), l = exp(m - m') l + rowsum p, o = exp(m - m') o.
/// s - m' is formed before anything is multiplied, so scores at the floor of fp32 stay finite. o is only touched where
/// a maximum has grown: elsewhere the factor is exactly 1.
void emitSoftmaxUpdate(Emitter &e, const TileBuffer &m, const TileBuffer &l, const TileBuffer &o, const TileBuffer &s,
                       const TileBuffer &p);

/// (m, l, o) = the state of both sets of keys, in place (tw.merge). Exact where one of them has seen nothing.
void emitMerge(Emitter &e, const TileBuffer &m, const TileBuffer &l, const TileBuffer &o, const TileBuffer &otherM,
               const TileBuffer &otherL, const TileBuffer &otherO);

/// o = o / l, lse = m + ln l rounded, rest = m + ln l - lse; 0, -inf and 0 for a row that has seen nothing. `lse` and
/// `rest` may lie where l and m do.
void emitSoftmaxFinish(Emitter &e, const TileBuffer &m, const TileBuffer &l, const TileBuffer &o, const TileBuffer &lse,
                       const TileBuffer &rest);

/// p = exp(s - lse - rest), at most 1, exactly 0 where s is -inf. `lse` and `rest` are R x 1 panels, or 1 x C when the
/// own rows are keys.
void emitProbability(Emitter &e, const TileBuffer &s, const TileBuffer &lse, const TileBuffer &rest,
                     const TileBuffer &p);

/// ds = p (dp - delta), exactly 0 where p is 0 whatever dp holds. `delta` as `lse` above.
void emitSoftmaxGradient(Emitter &e, const TileBuffer &p, const TileBuffer &dp, const TileBuffer &delta,
                         const TileBuffer &ds);

/// to = factor * from
void emitScale(Emitter &e, const TileBuffer &from, Value factor, const TileBuffer &to);

/// result (R x 1) = rowsum(a * b)
void emitRowDot(Emitter &e, const TileBuffer &a, const TileBuffer &b, const TileBuffer &result);

void emitFill(Emitter &e, const TileBuffer &tile, float value);
void emitCopy(Emitter &e, const TileBuffer &from, const TileBuffer &to);

} // namespace tilewright::cpu
