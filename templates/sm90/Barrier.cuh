// How warp groups hand tiles to each other: mbarriers (PTX ISA 9.7.13.15) in rings of slots, and named barriers.
#pragma once
#include "common/Block.cuh"

namespace tw {

using UInt64 = unsigned long long;

/// Warp groups are four warps; wgmma and setmaxnreg act on one as a whole.
constexpr int kGroupThreads = 128;

__device__ __forceinline__ int warpGroupIndex() { return uniform(int(threadIdx.x) / kGroupThreads); }

/// Address of the block's dynamic shared memory, aligned as the swizzle pattern of TMA and wgmma is.
__device__ __forceinline__ UInt32 swizzledSharedBase() {
  extern __shared__ __align__(1024) unsigned char dynamicShared[];
  return UInt32(__cvta_generic_to_shared(dynamicShared));
}

__device__ __forceinline__ void initBarrier(UInt32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the copy engine; a block barrier must follow for the other threads.
__device__ __forceinline__ void fenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(UInt32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and lets the phase end only when `bytes` have been copied in.
__device__ __forceinline__ void arriveExpecting(UInt32 barrier, UInt32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Waits for the end of the phase of this parity.
__device__ __forceinline__ void waitPhase(UInt32 barrier, UInt32 parity) {
  asm volatile("{\n.reg .pred done;\n"
               "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

/// Slots that a producer fills and consumers free, in turn. Each side keeps its own position. `barriers` is the shared
/// address of `Slots` full barriers and as many empty ones.
template <int Slots> struct Ring {
  static constexpr int bytes = Slots * 16;
  UInt32 barriers;
  int slot = 0;
  UInt32 phase = 0;

  __device__ __forceinline__ explicit Ring(UInt32 barriers) : barriers(barriers) {}
  __device__ __forceinline__ UInt32 full() const { return barriers + slot * 8; }
  __device__ __forceinline__ UInt32 empty() const { return barriers + (Slots + slot) * 8; }

  /// By one thread, before fenceBarrierInit. A consumer's warp frees a slot by one arrival.
  __device__ __forceinline__ void init(int consumerWarps) const {
#pragma unroll
    for (int i = 0; i < Slots; ++i) {
      initBarrier(barriers + i * 8, 1);
      initBarrier(barriers + (Slots + i) * 8, consumerWarps);
    }
  }
  /// Producer: until the slot is free. The first round finds every slot free.
  __device__ __forceinline__ void waitEmpty() const { waitPhase(empty(), phase ^ 1); }
  /// Consumer: until the slot is filled.
  __device__ __forceinline__ void waitFull() const { waitPhase(full(), phase); }
  __device__ __forceinline__ void advance() {
    if constexpr (Slots == 1) {
      phase ^= 1;
    } else {
      ++slot;
      if (slot == Slots) slot = 0, phase ^= 1;
    }
  }
  /// Consumer: the warp has read the slot; on to the next.
  __device__ __forceinline__ void release() {
    if (threadIdx.x % 32 == 0) arrive(empty());
    advance();
  }
};

/// Named barriers: `threads` is the sum of those that wait and those that only arrive.
template <int Threads> __device__ __forceinline__ void syncNamed(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(Threads) : "memory");
}
template <int Threads> __device__ __forceinline__ void arriveNamed(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(Threads) : "memory");
}

/// Hands registers of this warp group back to the block's pool, or takes some from it.
template <int Registers> __device__ __forceinline__ void lowerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers> __device__ __forceinline__ void raiseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

} // namespace tw
