// TCP with deadlines, as far as ranks need it to find each other. Errors name the address.
#pragma once

#include "tilewright/Error.h"
#include <chrono>
#include <string>
#include <utility>

namespace tilewright::dist {

using Deadline = std::chrono::steady_clock::time_point;

class Socket {
public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor(descriptor) {}
  Socket(Socket &&other) noexcept : descriptor(std::exchange(other.descriptor, -1)) {}
  Socket &operator=(Socket &&other) noexcept {
    std::swap(descriptor, other.descriptor);
    return *this;
  }
  ~Socket();

  /// Port 0 is any free one. A port in use is an error that names it and, where /proc tells, the process that holds it.
  static Expected<Socket> listen(const std::string &address, int port);
  /// Tries again until the deadline while nobody listens there yet.
  static Expected<Socket> connect(const std::string &host, int port, Deadline deadline);
  /// An invalid socket when the deadline passed, or the one who connected has gone again.
  Expected<Socket> accept(Deadline deadline);

  Status send(std::string_view bytes, Deadline deadline);
  Expected<std::string> receive(size_t bytes, Deadline deadline);
  /// A length and that many bytes.
  Status sendFrame(std::string_view bytes, Deadline deadline);
  Expected<std::string> receiveFrame(size_t most, Deadline deadline);

  bool valid() const { return descriptor >= 0; }
  int get() const { return descriptor; }
  int release() { return std::exchange(descriptor, -1); }
  int port() const;

private:
  int descriptor = -1;
};

} // namespace tilewright::dist
