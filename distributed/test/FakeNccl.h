// The controls of the fake NCCL that FakeNccl.cpp builds: ranks are threads of one process, device memory is host
// memory, every call is done when it returns.
#pragma once

#include <atomic>
#include <cstdint>

struct FakeNccl {
  std::atomic<int> version{22703};
  std::atomic<int> asyncError{0}; ///< What all communicators report.
  std::atomic<int> inProgress{0}; ///< The next so many questions say that a call still goes on.
  std::atomic<int> communicators{0}, aborts{0}, finalized{0}, registered{0}, blocking{0}, groups{0};
  std::atomic<int64_t> allocations{0};
};

using FakeNcclControls = FakeNccl *(*)();
