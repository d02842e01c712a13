// Threads that share the chunks of a loop, and the scratch memory they bring. Thread-safe: several callers may run
// loops at once, and each caller works on its own loop, so none waits for another's.
#pragma once

#include "tilewright/Error.h"
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tilewright {

/// Hands out the parts of [0, count), each to one participant.
class ChunkQueue {
public:
  ChunkQueue(int64_t count, int64_t chunk) : count(count), chunk(chunk) {}
  /// The next part; false when none is left.
  bool take(int64_t &begin, int64_t &end) {
    begin = next.fetch_add(chunk, std::memory_order_relaxed);
    if (begin >= count) return false;
    end = begin + chunk < count ? begin + chunk : count;
    return true;
  }
  bool exhausted() const { return next.load(std::memory_order_relaxed) >= count; }

private:
  std::atomic<int64_t> next{0};
  const int64_t count, chunk;
};

class ThreadPool {
public:
  /// `threads` counts the caller of run() too. Threads start with the first loop that can use them.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int threads() const { return threadCount; }

  /// Calls `participant` on this thread and, as far as they are free, on the pool's; each takes chunks until none is
  /// left. Returns when all have returned. `participant` must not throw.
  void run(int64_t count, int64_t chunk, const std::function<void(ChunkQueue &)> &participant);

  /// One thread a hardware thread that this process may use.
  static int hardwareThreads();

private:
  struct Job {
    ChunkQueue chunks;
    const std::function<void(ChunkQueue &)> &participant;
    int active = 0;
  };
  void start();
  void work();

  const int threadCount;
  std::mutex mutex;
  std::condition_variable wake, finished;
  std::vector<Job *> jobs;
  std::vector<std::thread> workers;
  bool started = false, stopping = false;
};

/// Buffers of scratch memory, 64-byte aligned, kept for the next borrower. Thread-safe.
class ScratchPool {
public:
  ~ScratchPool();

  class Lease {
  public:
    Lease(ScratchPool &pool, void *memory, int64_t bytes) : pool(&pool), memory(memory), bytes(bytes) {}
    Lease(Lease &&other) noexcept : pool(other.pool), memory(other.memory), bytes(other.bytes) {
      other.memory = nullptr;
    }
    Lease &operator=(Lease &&) = delete;
    ~Lease() {
      if (memory) pool->giveBack(memory, bytes);
    }
    void *data() const { return memory; }

  private:
    ScratchPool *pool;
    void *memory;
    int64_t bytes;
  };

  /// At least `bytes` (and at least one cache line) of uninitialised memory. The error names the size.
  Expected<Lease> borrow(int64_t bytes);

private:
  struct Buffer {
    void *memory;
    int64_t bytes;
  };
  void giveBack(void *memory, int64_t bytes);

  std::mutex mutex;
  std::vector<Buffer> idle;
};

} // namespace tilewright
