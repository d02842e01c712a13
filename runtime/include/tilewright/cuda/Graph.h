// CUDA graphs: launches recorded once from a stream, replayed at the cost of one.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/cuda/Stream.h"
#include <functional>

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

/// How strictly a capture watches the process' other calls of CUDA (CUstreamCaptureMode).
enum class CaptureMode : int { Global = 0, ThreadLocal = 1, Relaxed = 2 };

/// Owns an executable graph. Movable.
class Graph {
public:
  Graph() = default;
  /// Records what `enqueue` puts on `stream`, which must be no default stream. The capture ends in any case: after an
  /// error of `enqueue`, which is passed on, the stream works as before.
  static Expected<Graph> capture(std::shared_ptr<const Device> device, const Stream &stream,
                                 const std::function<Status()> &enqueue, CaptureMode mode = CaptureMode::ThreadLocal);
  ~Graph();
  Graph(Graph &&other) noexcept
      : device(std::move(other.device)), executable(std::exchange(other.executable, nullptr)),
        nodeCount(other.nodeCount) {}
  Graph &operator=(Graph &&other) noexcept {
    std::swap(device, other.device);
    std::swap(executable, other.executable);
    std::swap(nodeCount, other.nodeCount);
    return *this;
  }

  /// Launches, copies and fills that it holds.
  size_t nodes() const { return nodeCount; }
  Status launch(const Stream &stream) const;

private:
  std::shared_ptr<const Device> device;
  void *executable = nullptr;
  size_t nodeCount = 0;
};

} // namespace cuda
} // namespace tilewright
