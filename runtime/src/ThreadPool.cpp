#include "tilewright/ThreadPool.h"
#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <sched.h>
#include <system_error>

namespace tilewright {

ThreadPool::ThreadPool(int threads) : threadCount(std::max(threads, 1)) {}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex);
    stopping = true;
  }
  wake.notify_all();
  for (std::thread &worker : workers)
    worker.join();
}

int ThreadPool::hardwareThreads() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0 && CPU_COUNT(&allowed) > 0) return CPU_COUNT(&allowed);
  return std::max(1u, std::thread::hardware_concurrency());
}

void ThreadPool::start() {
  started = true;
  try {
    for (int i = 1; i < threadCount; ++i)
      workers.emplace_back([this] { work(); });
  } catch (const std::system_error &) {
    // The process may have no more threads: those that started, and the callers, do the work.
  }
}

void ThreadPool::run(int64_t count, int64_t chunk, const std::function<void(ChunkQueue &)> &participant) {
  Job job{ChunkQueue(count, chunk), participant};
  if (threadCount == 1 || count <= chunk) {
    participant(job.chunks);
    return;
  }
  {
    std::lock_guard lock(mutex);
    if (!started) start();
    jobs.push_back(&job);
  }
  wake.notify_all();
  participant(job.chunks);
  std::unique_lock lock(mutex);
  std::erase(jobs, &job);
  finished.wait(lock, [&] { return job.active == 0; });
}

void ThreadPool::work() {
  std::unique_lock lock(mutex);
  while (true) {
    auto open = jobs.end();
    wake.wait(lock, [&] {
      open = std::ranges::find_if(jobs, [](const Job *job) { return !job->chunks.exhausted(); });
      return stopping || open != jobs.end();
    });
    if (stopping) return;
    Job &job = **open;
    ++job.active;
    lock.unlock();
    job.participant(job.chunks);
    lock.lock();
    if (--job.active == 0) finished.notify_all();
  }
}

ScratchPool::~ScratchPool() {
  for (Buffer &buffer : idle)
    std::free(buffer.memory);
}

Expected<ScratchPool::Lease> ScratchPool::borrow(int64_t bytes) {
  constexpr int64_t line = 64;
  bytes = std::max((bytes + line - 1) / line * line, line);
  {
    std::lock_guard lock(mutex);
    auto fits = std::ranges::find_if(idle, [&](const Buffer &buffer) { return buffer.bytes >= bytes; });
    if (fits != idle.end()) {
      Buffer buffer = *fits;
      idle.erase(fits);
      return Lease(*this, buffer.memory, buffer.bytes);
    }
    // A buffer that is too small for this kernel makes room for the larger one, so that the pool does not grow with the
    // number of kernels.
    if (!idle.empty()) {
      std::free(idle.back().memory);
      idle.pop_back();
    }
  }
  void *memory = std::aligned_alloc(line, static_cast<size_t>(bytes));
  if (!memory)
    return fail(Stage::Launch, fmt::format("cannot allocate {} bytes of scratch memory for a thread", bytes),
                "free memory, or use fewer threads (TILEWRIGHT_THREADS)");
  return Lease(*this, memory, bytes);
}

void ScratchPool::giveBack(void *memory, int64_t bytes) {
  std::lock_guard lock(mutex);
  idle.push_back({memory, bytes});
}

} // namespace tilewright
