// A loop over independent pieces of work on a few threads, for host-side work that is not a kernel's: filling tensors
// and computing references. (Kernels run on the Context's own pool.)
#pragma once

#include "tilewright/Error.h"
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace tilewright {

/// `threads`, or one a hardware thread where it is 0.
inline int threadCount(int threads) {
  return threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// Calls body(i) for every i in [0, count), in any order. A body may throw std::bad_alloc, which becomes the error;
/// threads that the system refuses are done without.
template <class Body> Status parallelFor(int64_t count, int threads, const Body &body) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> outOfMemory{false};
  const auto work = [&] {
    try {
      for (int64_t i = next.fetch_add(1); i < count && !outOfMemory; i = next.fetch_add(1))
        body(i);
    } catch (const std::bad_alloc &) {
      outOfMemory = true;
    }
  };
  {
    std::vector<std::jthread> workers;
    try {
      for (int64_t t = 1; t < std::min<int64_t>(threadCount(threads), count); ++t)
        workers.emplace_back(work);
    } catch (const std::system_error &) {
    } catch (const std::bad_alloc &) {
    }
    work();
  }
  if (outOfMemory) return fail(Stage::Input, "not enough memory for the working space of a host computation");
  return {};
}

} // namespace tilewright
