// CUDA device code compiled for the host: what it calls, and a block's threads as fibers that take turns. Only what the
// templates of steps and layers use. Included before them; blocks run one at a time.
#pragma once

#include <bit>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <ucontext.h>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __grid_constant__

namespace device_on_host {

struct Dimensions {
  unsigned x = 0;
};

/// One block's threads. A thread that waits gives way to the next; when none can go on, the kernel hangs. Each has a
/// stack of its own, on which it stays from block to block; _setjmp and _longjmp change between them without the
/// system.
class BlockRunner {
public:
  static BlockRunner &get() {
    static BlockRunner runner;
    return runner;
  }

  void run(unsigned threads, const std::function<void()> &kernel) {
    body = &kernel;
    blockThreads = threads;
    barrier = {};
    warps.assign((threads + 31) / 32, {});
    while (fibers.size() < threads)
      fibers.push_back(std::make_unique<Fiber>());
    for (unsigned i = 0; i < threads; ++i)
      fibers[i]->done = false;
    for (unsigned left = threads; left > 0;) {
      const unsigned before = left;
      const long long progress = passed;
      for (current = 0; current < threads; ++current) {
        if (fibers[current]->done) continue;
        resume(*fibers[current]);
        left -= fibers[current]->done;
      }
      if (left == before && passed == progress) {
        std::fprintf(stderr, "a kernel hangs: %u of %u threads wait\n", left, threads);
        std::abort();
      }
    }
  }

  unsigned thread() const { return current; }
  void synchronizeBlock() { wait(barrier, blockThreads); }
  /// What lane `from` of this thread's warp brings.
  template <class T> T exchange(T value, unsigned from) {
    static_assert(sizeof(T) == 4);
    Warp &warp = warps[current / 32];
    warp.slots[current % 32] = std::bit_cast<unsigned>(value);
    wait(warp.barrier, 32);
    const T result = std::bit_cast<T>(warp.slots[from % 32]);
    wait(warp.barrier, 32);
    return result;
  }

private:
  struct Barrier {
    unsigned arrived = 0, turn = 0;
  };
  struct Warp {
    unsigned slots[32] = {};
    Barrier barrier;
  };
  struct Fiber {
    ucontext_t start;
    jmp_buf at;
    bool started = false, done = false;
    char stack[64 << 10];
  };

  void resume(Fiber &fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.at, 1);
    fiber.started = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack;
    fiber.start.uc_stack.ss_size = sizeof(fiber.stack);
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, runBlocks, 0);
    setcontext(&fiber.start);
  }
  void giveWay() {
    if (!_setjmp(fibers[current]->at)) _longjmp(scheduler, 1);
  }
  static void runBlocks() {
    for (BlockRunner &runner = get();; runner.giveWay()) {
      (*runner.body)();
      runner.fibers[runner.current]->done = true;
    }
  }
  void wait(Barrier &at, unsigned count) {
    const unsigned turn = at.turn;
    if (++at.arrived == count) {
      at.arrived = 0;
      ++at.turn;
      ++passed;
      return;
    }
    while (at.turn == turn)
      giveWay();
  }

  const std::function<void()> *body = nullptr;
  unsigned blockThreads = 0, current = 0;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  Barrier barrier;
  jmp_buf scheduler;
  long long passed = 0; ///< Barriers.
};

struct ThreadIndex {
  struct X {
    operator unsigned() const { return BlockRunner::get().thread(); }
  } x;
};

inline Dimensions blockIdx, blockDim, gridDim;
inline ThreadIndex threadIdx;

template <class Kernel> void runGrid(unsigned blocks, unsigned threads, Kernel kernel) {
  gridDim.x = blocks;
  blockDim.x = threads;
  const std::function<void()> body = kernel;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    BlockRunner::get().run(threads, body);
}

} // namespace device_on_host

using device_on_host::blockDim;
using device_on_host::blockIdx;
using device_on_host::gridDim;
using device_on_host::threadIdx;

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline void __syncthreads() { device_on_host::BlockRunner::get().synchronizeBlock(); }
template <class T> T __shfl_xor_sync(unsigned, T value, int lanes) {
  return device_on_host::BlockRunner::get().exchange(value, threadIdx.x ^ static_cast<unsigned>(lanes));
}
template <class T> T __shfl_up_sync(unsigned, T value, int lanes) {
  const unsigned lane = threadIdx.x % 32, by = static_cast<unsigned>(lanes);
  return device_on_host::BlockRunner::get().exchange(value, lane >= by ? lane - by : lane);
}
