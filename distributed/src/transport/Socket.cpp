#include "Socket.h"
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <memory>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace tilewright::dist {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Expected<Addresses> resolve(const std::string &host, int port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  if (int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found))
    return fail(Stage::Communicate, fmt::format("cannot resolve '{}': {}", host, gai_strerror(code)));
  return Addresses(found, freeaddrinfo);
}

/// Waits until `events` are there; false when the deadline passed.
bool waitFor(int descriptor, short events, Deadline deadline) {
  while (true) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{descriptor, events, 0};
    int ready = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

} // namespace

Socket::~Socket() {
  if (descriptor >= 0) close(descriptor);
}

Expected<Socket> Socket::listen(const std::string &address, int port) {
  Expected<Addresses> addresses = resolve(address, port, AI_PASSIVE | AI_NUMERICHOST);
  if (!addresses) return propagate(addresses);
  const addrinfo &at = **addresses;
  Socket socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (socket.valid()) setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (!socket.valid() || bind(socket.get(), at.ai_addr, at.ai_addrlen) != 0 || ::listen(socket.get(), 128) != 0) {
    const int code = errno;
    return fail(Stage::Communicate, fmt::format("cannot listen on {} port {}: {}", address, port, std::strerror(code)),
                code == EADDRINUSE
                    ? fmt::format("another process holds the port (`ss -ltnp 'sport = :{}'` names it); set "
                                  "MASTER_PORT to a free one, or let `tilewright launch` choose",
                                  port)
                    : "");
  }
  return socket;
}

Expected<Socket> Socket::connect(const std::string &host, int port, Deadline deadline) {
  Expected<Addresses> addresses = resolve(host, port, 0);
  if (!addresses) return propagate(addresses);
  int code = 0;
  do {
    for (const addrinfo *at = addresses->get(); at; at = at->ai_next) {
      Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket.valid()) {
        code = errno;
        continue;
      }
      code = ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
      if (code == EINPROGRESS) {
        code = ETIMEDOUT;
        socklen_t size = sizeof(code);
        if (waitFor(socket.get(), POLLOUT, deadline)) getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &size);
      }
      if (code) continue;
      const int yes = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      return socket;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (std::chrono::steady_clock::now() < deadline);
  return fail(Stage::Communicate,
              fmt::format("cannot connect to rank 0 at {} port {}: {}", host, port, std::strerror(code)),
              "is rank 0 running, and do MASTER_ADDR and MASTER_PORT name its host?");
}

Expected<Socket> Socket::accept(Deadline deadline) {
  if (!waitFor(descriptor, POLLIN, deadline)) return Socket();
  Socket socket(accept4(descriptor, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) {
    const int yes = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
    return fail(Stage::Communicate, fmt::format("cannot accept connections: {}", std::strerror(errno)));
  return socket;
}

Status Socket::send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    ssize_t sent = ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
      return fail(Stage::Communicate, fmt::format("rendezvous: cannot send: {}", std::strerror(errno)));
    if (!waitFor(descriptor, POLLOUT, deadline)) return fail(Stage::Communicate, "rendezvous: timed out while sending");
  }
  return {};
}

Expected<std::string> Socket::receive(size_t bytes, Deadline deadline) {
  std::string data(bytes, '\0');
  size_t at = 0;
  while (at < bytes) {
    ssize_t got = recv(descriptor, data.data() + at, bytes - at, 0);
    if (got == 0) return fail(Stage::Communicate, "rendezvous: the other side closed the connection");
    if (got > 0) {
      at += static_cast<size_t>(got);
      continue;
    }
    if (errno != EAGAIN && errno != EINTR)
      return fail(Stage::Communicate, fmt::format("rendezvous: cannot receive: {}", std::strerror(errno)));
    if (!waitFor(descriptor, POLLIN, deadline))
      return fail(Stage::Communicate, "rendezvous: timed out while receiving");
  }
  return data;
}

Status Socket::sendFrame(std::string_view bytes, Deadline deadline) {
  uint32_t length = htonl(static_cast<uint32_t>(bytes.size()));
  std::string frame(reinterpret_cast<const char *>(&length), sizeof(length));
  frame += bytes;
  return send(frame, deadline);
}

Expected<std::string> Socket::receiveFrame(size_t most, Deadline deadline) {
  Expected<std::string> head = receive(4, deadline);
  if (!head) return head;
  uint32_t length;
  std::memcpy(&length, head->data(), sizeof(length));
  length = ntohl(length);
  if (length > most)
    return fail(Stage::Communicate,
                fmt::format("rendezvous: a message of {} bytes; at most {} are expected", length, most));
  return receive(length, deadline);
}

int Socket::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr *>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6 &>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in &>(address).sin_port);
}

} // namespace tilewright::dist
