// SwiGLU (Shazeer, arXiv 2002.05202): y = silu(gate) up, silu(g) = g / (1 + exp(-g)), and its gradients.
#pragma once
#include "train/Rows.cuh"

namespace tw {

__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

struct GateArgs {
  RowsRef gate, up, y;
  Int64 rows;
  int columns;
};

template <class Element> __device__ void swiglu(const GateArgs &args) {
  const Int64 r = rowOfWarp();
  if (r >= args.rows) return;
  for (int c = laneIndex() * kUnit; c < args.columns; c += 32 * kUnit) {
    const Unit up = loadUnit(args.up.row<Element>(r) + c);
    Unit u = loadUnit(args.gate.row<Element>(r) + c);
#pragma unroll
    for (int i = 0; i < kUnit; ++i)
      u.x[i] *= sigmoid(u.x[i]) * up.x[i];
    storeUnit(args.y.row<Element>(r) + c, u);
  }
}

struct GateGradientArgs {
  RowsRef gate, up, dY, dGate, dUp;
  Int64 rows;
  int columns;
};

template <class Element> __device__ void swigluGradient(const GateGradientArgs &args) {
  const Int64 r = rowOfWarp();
  if (r >= args.rows) return;
  for (int c = laneIndex() * kUnit; c < args.columns; c += 32 * kUnit) {
    const Unit dY = loadUnit(args.dY.row<Element>(r) + c);
    Unit gate = loadUnit(args.gate.row<Element>(r) + c), up = loadUnit(args.up.row<Element>(r) + c);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const float g = gate.x[i], s = sigmoid(g);
      gate.x[i] = dY.x[i] * up.x[i] * s * (1 + g * (1 - s));
      up.x[i] = dY.x[i] * g * s;
    }
    storeUnit(args.dGate.row<Element>(r) + c, gate);
    storeUnit(args.dUp.row<Element>(r) + c, up);
  }
}

} // namespace tw
