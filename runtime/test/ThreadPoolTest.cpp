#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/ThreadPool.h"
#include <doctest/doctest.h>
#include <memory>
#include <set>

using namespace tilewright;

// The sanitizers end a program that asks for too much memory, unless told that it knows what it does.
extern "C" const char *__asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char *__tsan_default_options() { return "allocator_may_return_null=1"; }

TEST_CASE("every index is visited once, for any number of threads and chunk size") {
  for (int threads : {1, 2, 7})
    for (int64_t count : {0, 1, 2, 63, 1000})
      for (int64_t chunk : {1, 3, 1000}) {
        ThreadPool pool(threads);
        auto visits = std::make_unique<std::atomic<int>[]>(count + 1);
        for (int round = 0; round < 3; ++round)
          pool.run(count, chunk, [&](ChunkQueue &chunks) {
            for (int64_t begin, end; chunks.take(begin, end);)
              for (int64_t i = begin; i < end; ++i)
                ++visits[i];
          });
        for (int64_t i = 0; i < count; ++i)
          REQUIRE(visits[i] == 3);
      }
}

TEST_CASE("all threads take part in a long loop") {
  ThreadPool pool(4);
  std::mutex mutex;
  std::condition_variable all;
  std::set<std::thread::id> seen;
  // Each participant waits for the others, so the loop ends only if all four came.
  pool.run(4, 1, [&](ChunkQueue &chunks) {
    for (int64_t begin, end; chunks.take(begin, end);) {
      std::unique_lock lock(mutex);
      seen.insert(std::this_thread::get_id());
      all.notify_all();
      all.wait(lock, [&] { return seen.size() == 4; });
    }
  });
  CHECK(seen.size() == 4);
}

TEST_CASE("many callers share a pool, and a loop within a loop ends") {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i)
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round)
        pool.run(20, 1, [&](ChunkQueue &outer) {
          for (int64_t begin, end; outer.take(begin, end);)
            pool.run(3, 1, [&](ChunkQueue &inner) {
              for (int64_t b, e; inner.take(b, e);)
                sum += e - b;
            });
        });
    });
  for (std::thread &caller : callers)
    caller.join();
  CHECK(sum == 8 * 50 * 20 * 3);
}

TEST_CASE("scratch memory is aligned, reused and lent to one at a time") {
  ScratchPool pool;
  void *first = nullptr;
  {
    auto a = pool.borrow(100), b = pool.borrow(100);
    REQUIRE((a && b));
    CHECK(a->data() != b->data());
    CHECK(reinterpret_cast<uintptr_t>(a->data()) % 64 == 0);
    first = a->data();
  }
  auto again = pool.borrow(50), other = pool.borrow(128);
  CHECK((again->data() == first || other->data() == first));
  auto tooMuch = pool.borrow(int64_t{1} << 60);
  REQUIRE_FALSE(tooMuch);
  CHECK(tooMuch.error().message.find("1152921504606846976 bytes") != std::string::npos);
}
