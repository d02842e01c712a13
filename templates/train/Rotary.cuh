// Rotary positions (Su et al., arXiv 2104.09864): turns neighbouring columns (2i, 2i + 1) of each head by the angle of
// the row's position, in place. Turning back is the gradient.
#pragma once
#include "train/Rows.cuh"

namespace tw {

struct RotaryArgs {
  RowsRef x;
  const float *cosines, *sines; ///< (position, pair), pairs = headDim / 2
  Int64 rows;
  int columns, headDim, length, start; ///< The position of row r is start + r % length.
  float sign;                          ///< -1 turns back.
};

template <class Element> __device__ void rotary(const RotaryArgs &args) {
  const Int64 r = rowOfWarp();
  if (r >= args.rows) return;
  Element *x = args.x.row<Element>(r);
  const Int64 at = (args.start + r % args.length) * (args.headDim / 2);
  for (int c = laneIndex() * kUnit; c < args.columns; c += 32 * kUnit) {
    Unit u = loadUnit(x + c);
    const int pair = c % args.headDim / 2; // heads are whole units
    const float4 cosine = *reinterpret_cast<const float4 *>(args.cosines + at + pair),
                 sine = *reinterpret_cast<const float4 *>(args.sines + at + pair);
    const float cosines[4] = {cosine.x, cosine.y, cosine.z, cosine.w}, sines[4] = {sine.x, sine.y, sine.z, sine.w};
#pragma unroll
    for (int i = 0; i < kUnit / 2; ++i) {
      const float a = u.x[2 * i], b = u.x[2 * i + 1], s = args.sign * sines[i];
      u.x[2 * i] = a * cosines[i] - b * s;
      u.x[2 * i + 1] = a * s + b * cosines[i];
    }
    storeUnit(x + c, u);
  }
}

} // namespace tw
