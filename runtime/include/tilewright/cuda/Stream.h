// Streams and events: order and time of work on a device.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/cuda/Device.h"

namespace tilewright {
namespace cuda TILEWRIGHT_PUBLIC {

/// Owns a stream that does not synchronise with the legacy default stream. Movable.
class Stream {
public:
  Stream() = default;
  static Expected<Stream> create(std::shared_ptr<const Device> device);
  ~Stream();
  Stream(Stream &&other) noexcept : device(std::move(other.device)), stream(std::exchange(other.stream, nullptr)) {}
  Stream &operator=(Stream &&other) noexcept {
    std::swap(device, other.device);
    std::swap(stream, other.stream);
    return *this;
  }

  void *handle() const { return stream; } ///< The CUstream.
  Status synchronize() const;

private:
  std::shared_ptr<const Device> device;
  void *stream = nullptr;
};

/// Owns an event that records time. Movable.
class Event {
public:
  Event() = default;
  static Expected<Event> create(std::shared_ptr<const Device> device);
  ~Event();
  Event(Event &&other) noexcept : device(std::move(other.device)), event(std::exchange(other.event, nullptr)) {}
  Event &operator=(Event &&other) noexcept {
    std::swap(device, other.device);
    std::swap(event, other.event);
    return *this;
  }

  void *handle() const { return event; } ///< The CUevent.
  Status record(void *stream);
  Status synchronize() const;
  /// Whether all work before record() is done; does not wait.
  Expected<bool> isReached() const;
  /// Later work of `stream` starts after what record() followed.
  Status holdBack(void *stream) const;
  /// Milliseconds from `start` to this event; both must have been reached.
  Expected<double> millisecondsSince(const Event &start) const;

private:
  std::shared_ptr<const Device> device;
  void *event = nullptr;
};

} // namespace cuda
} // namespace tilewright
