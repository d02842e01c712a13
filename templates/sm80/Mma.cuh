// Matrix products of one warp over tiles in shared memory and registers: mma.sync.m16n8k16 with fp32 accumulation
// and ldmatrix (PTX ISA 9.7.15.4.8 and 9.7.15.4.15 give the fragments' layouts).
//
// An accumulator fragment of 16 x 8 holds, in lane l, the elements (l / 4, 2 (l % 4) + {0, 1}) and the same eight rows
// below. Two neighbouring ones, packed to 16 bits, are exactly one A operand of 16 x 16: a product's result feeds the
// next product without leaving its registers.
#pragma once
#include "sm80/SharedTile.cuh"

namespace tw {

/// `M` x `N` fp32 sums of one warp.
template <int M, int N> struct Accumulator {
  static constexpr int rows = M, cols = N;
  float x[M / 16][N / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[i][j][e] = 0.f;
  }
  __device__ __forceinline__ void scaleBy(float factor) {
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[i][j][e] *= factor;
  }
};

/// Row and column within a warp's accumulator of element `e` of fragment (i, j) in this lane.
__device__ __forceinline__ int fragmentRow(int i, int e) { return i * 16 + int(threadIdx.x % 32) / 4 + (e >> 1) * 8; }
__device__ __forceinline__ int fragmentCol(int j, int e) { return j * 8 + int(threadIdx.x % 4) * 2 + (e & 1); }

/// An `M` x `K` A operand in registers.
template <class ElementT, int M, int K> struct Operand {
  using Element = ElementT;
  static constexpr int planes = Format<Element>::planes;
  UInt32 x[planes][M / 16][K / 16][4];
};

/// Rounds an accumulator to an operand.
template <class Element, int M, int K>
__device__ __forceinline__ Operand<Element, M, K> packOperand(const Accumulator<M, K> &sums) {
  Operand<Element, M, K> operand;
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int k = 0; k < K / 16; ++k)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float(&from)[4] = sums.x[i][2 * k + (r >> 1)];
        UInt32 planes[Operand<Element, M, K>::planes];
        Pack<Element>::apply(from[(r & 1) * 2], from[(r & 1) * 2 + 1], planes);
#pragma unroll
        for (int p = 0; p < Operand<Element, M, K>::planes; ++p)
          operand.x[p][i][k][r] = planes[p];
      }
  return operand;
}

__device__ __forceinline__ void loadMatrices(UInt32 (&x)[4], UInt32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void loadMatricesTransposed(UInt32 (&x)[4], UInt32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

/// sums += a b for one fragment, a 16 x 16, b 16 x 8.
template <class Element>
__device__ __forceinline__ void mmaFragment(float (&d)[4], const UInt32 (&a)[4], UInt32 b0, UInt32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mmaFragment<F16>(float (&d)[4], const UInt32 (&a)[4], UInt32 b0, UInt32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// A lane's offset for the four 8 x 8 matrices of a 16 x 16 block in the order (upper left, lower left, upper right,
/// lower right), and in the order with the middle two exchanged.
template <int Pitch> __device__ __forceinline__ UInt32 laneDown() {
  int lane = threadIdx.x % 32;
  return lane % 16 * Pitch + lane / 16 * 16;
}
template <int Pitch> __device__ __forceinline__ UInt32 laneAcross() {
  int lane = threadIdx.x % 32;
  return (lane % 8 + lane / 16 * 8) * Pitch + lane / 8 % 2 * 16;
}

/// A's 16 x 16 block (row block i, k block) in plane p, from wherever A lies.
template <class Element, int M, int K> struct RegisterA {
  static constexpr bool inRegisters = true;
  const Operand<Element, M, K> &operand;
  __device__ __forceinline__ void load(UInt32 (&x)[4], int p, int i, int k) const {
#pragma unroll
    for (int r = 0; r < 4; ++r)
      x[r] = operand.x[p][i][k][r];
  }
};
template <class Tile> struct SharedA {
  static constexpr bool inRegisters = false;
  UInt32 address;
  __device__ __forceinline__ SharedA(const Tile &tile, int row, int col)
      : address(tile.address + row * Tile::pitch + col * 2 + laneDown<Tile::pitch>()) {}
  __device__ __forceinline__ void load(UInt32 (&x)[4], int p, int i, int k) const {
    loadMatrices(x, address + p * Tile::planeBytes + i * 16 * Tile::pitch + k * 32);
  }
};
/// A is the transpose of the tile: A's rows are the tile's columns.
template <class Tile> struct SharedTransposedA {
  static constexpr bool inRegisters = false;
  UInt32 address;
  __device__ __forceinline__ SharedTransposedA(const Tile &tile, int row, int col)
      : address(tile.address + row * Tile::pitch + col * 2 + laneAcross<Tile::pitch>()) {}
  __device__ __forceinline__ void load(UInt32 (&x)[4], int p, int i, int k) const {
    loadMatricesTransposed(x, address + p * Tile::planeBytes + k * 16 * Tile::pitch + i * 32);
  }
};

/// B's 16 (k) x 16 (n) block; registers 0, 1 serve the left 8 columns and 2, 3 the right 8.
template <class Tile> struct SharedB {
  UInt32 address;
  __device__ __forceinline__ SharedB(const Tile &tile, int row, int col)
      : address(tile.address + row * Tile::pitch + col * 2 + laneDown<Tile::pitch>()) {}
  __device__ __forceinline__ void load(UInt32 (&x)[4], int p, int n, int k) const {
    loadMatricesTransposed(x, address + p * Tile::planeBytes + k * 16 * Tile::pitch + n * 32);
  }
};
/// B is the transpose of the tile: B's columns are the tile's rows.
template <class Tile> struct SharedTransposedB {
  UInt32 address;
  __device__ __forceinline__ SharedTransposedB(const Tile &tile, int row, int col)
      : address(tile.address + row * Tile::pitch + col * 2 + laneAcross<Tile::pitch>()) {}
  __device__ __forceinline__ void load(UInt32 (&x)[4], int p, int n, int k) const {
    loadMatrices(x, address + p * Tile::planeBytes + n * 16 * Tile::pitch + k * 32);
  }
};

/// sums += A B for one fragment from its planes; `half` says which eight columns of B. Three planes make six products,
/// p + q < 3, small ones first; the dropped ones are below 2^-24. Tensor cores cut off what does not fit the
/// accumulator, always towards zero, so a long sum in one accumulator drifts by 2^-24 a product: 1.7e-5 over 2048
/// terms. The six therefore start from zero and are added in fp32, rounded to nearest, which keeps 2048 terms to 4e-7.
/// Not so where `Rounded` is false: the sums of a row may take all registers that there are.
template <class Element, bool Rounded, int Planes>
__device__ __forceinline__ void multiplyPlanes(float (&sums)[4], const UInt32 (&left)[Planes][4],
                                               const UInt32 (&right)[Planes][4], int half) {
  auto addProducts = [&](float(&to)[4]) {
#pragma unroll
    for (int p = Planes - 1; p >= 0; --p)
#pragma unroll
      for (int q = Planes - 1 - p; q >= 0; --q)
        mmaFragment<Element>(to, left[p], right[q][2 * half], right[q][2 * half + 1]);
  };
  if constexpr (!Rounded) {
    addProducts(sums);
  } else {
    float step[4] = {0.f, 0.f, 0.f, 0.f};
    addProducts(step);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      sums[e] += step[e];
  }
}

/// sums += A B, A M x K, B K x N.
template <class Element, int K, int M, int N, class A, class B>
__device__ __forceinline__ void multiplyBlocks(Accumulator<M, N> &sums, const A &a, const B &b) {
  constexpr int planes = Format<Element>::planes;
  constexpr bool rounded = N <= 192;
  static_assert(K % 16 == 0 && M % 16 == 0 && N % 16 == 0, "whole blocks");
  // Six products a step need no unrolling to stay busy; without it fragments of many steps would be live at once.
  constexpr int steps = planes > 1 && !A::inRegisters ? 1 : K / 16;
#pragma unroll steps
  for (int k = 0; k < K / 16; ++k) {
    if constexpr (planes == 1) { // as below, without the loops that would run once: they cost compile time
      UInt32 left[M / 16][4];
#pragma unroll
      for (int i = 0; i < M / 16; ++i)
        a.load(left[i], 0, i, k);
#pragma unroll
      for (int n = 0; n < N / 16; ++n) {
        UInt32 right[4];
        b.load(right, 0, n, k);
#pragma unroll
        for (int i = 0; i < M / 16; ++i) {
          mmaFragment<Element>(sums.x[i][2 * n], left[i], right[0], right[1]);
          mmaFragment<Element>(sums.x[i][2 * n + 1], left[i], right[2], right[3]);
        }
      }
    } else {
      UInt32 left[M / 16][planes][4];
#pragma unroll
      for (int p = 0; p < planes; ++p)
#pragma unroll
        for (int i = 0; i < M / 16; ++i)
          a.load(left[i][p], p, i, k);
#pragma unroll
      for (int n = 0; n < N / 16; ++n) {
        UInt32 right[planes][4];
        __syncwarp(); // Keeps the assembler from loading many blocks ahead, which the registers would not bear.
#pragma unroll
        for (int p = 0; p < planes; ++p)
          b.load(right[p], p, n, k);
#pragma unroll
        for (int i = 0; i < M / 16; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            multiplyPlanes<Element, rounded>(sums.x[i][2 * n + half], left[i], right, half);
            __syncwarp(); // and from delaying many additions
          }
      }
    }
  }
}

/// sums += A B^T: A = rows [aRow, aRow + M) of tile `a`, B = rows [bRow, bRow + N) of tile `b`, over all columns.
template <int M, int N, class TileA, class TileB>
__device__ __forceinline__ void multiplyTransposed(Accumulator<M, N> &sums, const TileA &a, int aRow, const TileB &b,
                                                   int bRow) {
  static_assert(TileA::cols == TileB::cols, "one inner dimension");
  multiplyBlocks<typename TileA::Element, TileA::cols>(sums, SharedA<TileA>(a, aRow, 0),
                                                       SharedTransposedB<TileB>(b, bRow, 0));
}
/// The same with A in registers.
template <int M, int N, int K, class Element, class TileB>
__device__ __forceinline__ void multiplyTransposed(Accumulator<M, N> &sums, const Operand<Element, M, K> &a,
                                                   const TileB &b, int bRow) {
  static_assert(TileB::cols == K, "one inner dimension");
  multiplyBlocks<Element, K>(sums, RegisterA<Element, M, K>{a}, SharedTransposedB<TileB>(b, bRow, 0));
}

/// sums += A B: A in registers, B = columns [bCol, bCol + N) of all rows of tile `b`.
template <int M, int N, int K, class Element, class TileB>
__device__ __forceinline__ void multiply(Accumulator<M, N> &sums, const Operand<Element, M, K> &a, const TileB &b,
                                         int bCol) {
  static_assert(TileB::rows == K, "one inner dimension");
  multiplyBlocks<Element, K>(sums, RegisterA<Element, M, K>{a}, SharedB<TileB>(b, 0, bCol));
}
/// sums += A B: A = rows [aRow, aRow + M) of tile `a`.
template <int M, int N, class TileA, class TileB>
__device__ __forceinline__ void multiply(Accumulator<M, N> &sums, const TileA &a, int aRow, const TileB &b, int bCol) {
  static_assert(TileA::cols == TileB::rows, "one inner dimension");
  multiplyBlocks<typename TileA::Element, TileA::cols>(sums, SharedA<TileA>(a, aRow, 0), SharedB<TileB>(b, 0, bCol));
}
/// sums += A^T B: A^T's rows are columns [aCol, aCol + M) of tile `a`.
template <int M, int N, class TileA, class TileB>
__device__ __forceinline__ void multiplyFromTransposed(Accumulator<M, N> &sums, const TileA &a, int aCol,
                                                       const TileB &b, int bCol) {
  static_assert(TileA::rows == TileB::rows, "one inner dimension");
  multiplyBlocks<typename TileA::Element, TileA::rows>(sums, SharedTransposedA<TileA>(a, 0, aCol),
                                                       SharedB<TileB>(b, 0, bCol));
}

/// Loads rows [row, row + M) of a tile as an A operand that stays in registers.
template <int M, class Tile>
__device__ __forceinline__ Operand<typename Tile::Element, M, Tile::cols> loadOperand(const Tile &tile, int row) {
  Operand<typename Tile::Element, M, Tile::cols> operand;
  SharedA<Tile> from(tile, row, 0);
#pragma unroll
  for (int p = 0; p < Tile::planes; ++p)
#pragma unroll
    for (int i = 0; i < M / 16; ++i)
#pragma unroll
      for (int k = 0; k < Tile::cols / 16; ++k)
        from.load(operand.x[p][i][k], p, i, k);
  return operand;
}

} // namespace tw
