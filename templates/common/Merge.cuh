// O and LSE of a row from the states of its parts (common/State.cuh): total = max LSE + ln sum exp(LSE + rest - max LSE),
// O = sum exp(LSE + rest - total) O.
#pragma once
#include "common/Exponents.cuh"
#include "common/RowOwner.cuh"
#include "common/State.cuh"
#include "sm80/Store.cuh"

namespace tw {

/// Row `row` of tile `tile` (of the whole grid), by one warp, in the order of the parts, so that the result is the same in
/// every run.
template <class Element, int Rows, int Dim, int Parts, class Owner>
__device__ __forceinline__ void mergeRow(const Args &args, const Owner &owner, Int64 tile, int row) {
  auto state = [&](int part) { return State<Rows, Dim>(args.partials, tile, part, Parts); };
  float top = minusInfinity();
  for (int part = 0; part < Parts; ++part)
    top = fmaxf(top, state(part).lse(row));
  // A part without keys weighs nothing; NaN stays NaN.
  auto weight = [&](int part) {
    float lse = state(part).lse(row);
    return lse == minusInfinity() ? 0.f : exp2Approx(((lse - top) + state(part).rest(row)) * kLog2E);
  };
  float sum = 0.f;
  for (int part = 0; part < Parts; ++part)
    sum += weight(part);
  float inverse = sum == 0.f ? 0.f : 1.f / sum;
  Element *o = owner.template line<Element>(args.o, row);
#pragma unroll
  for (int first = 0; first < Dim; first += 128) {
    int col = first + int(threadIdx.x % 32) * 4;
    if (col >= Dim) continue;
    float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
    for (int part = 0; part < Parts; ++part) {
      float w = weight(part) * inverse;
      if (w == 0.f) continue; // its O may hold anything
      float4 x = *reinterpret_cast<const float4 *>(state(part).o(row) + col);
      total.x = fmaf(w, x.x, total.x), total.y = fmaf(w, x.y, total.y);
      total.z = fmaf(w, x.z, total.z), total.w = fmaf(w, x.w, total.w);
    }
    *reinterpret_cast<uint2 *>(o + col) =
        make_uint2(packPair<Element>(total.x, total.y), packPair<Element>(total.z, total.w));
  }
  if (threadIdx.x % 32 != 0) return;
  float lnSum = __logf(sum), lse = fabsf(top) > kLonelyLse || sum == 0.f ? top : top + lnSum;
  owner.value(args.lse, args, row) = lse;
  if (args.lseRest) owner.value(args.lseRest, args, row) = sum == 0.f ? 0.f : (top - lse) + lnSum;
}

} // namespace tw
