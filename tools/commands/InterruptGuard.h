// Ctrl-C as a request: while a guard lives an interrupt ends the work at hand instead of the process.
#pragma once

#include <atomic>
#include <csignal>

namespace tilewright::tool {

/// Set by the first SIGINT or SIGTERM. One guard at a time; a second signal ends the process.
class InterruptGuard {
public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard &) = delete;
  InterruptGuard &operator=(const InterruptGuard &) = delete;

  static const std::atomic<bool> &requested();

private:
  struct sigaction before[2];
};

} // namespace tilewright::tool
