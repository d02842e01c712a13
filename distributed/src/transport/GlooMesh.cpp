#include "GlooMesh.h"
#include <arpa/inet.h>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/tcp.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sys/socket.h>

namespace tilewright::dist {
namespace {

/// Of a socket's own or its peer's IPv4 address; nothing else's.
std::optional<sockaddr_in> addressBy(int (*query)(int, sockaddr *, socklen_t *), int descriptor) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (query(descriptor, reinterpret_cast<sockaddr *>(&address), &size) != 0 || address.sin_family != AF_INET)
    return std::nullopt;
  return address;
}

int portOf(const std::vector<char> &gloosAddress) {
  const gloo::transport::tcp::Address address(gloosAddress);
  const sockaddr_storage &storage = address.getSockaddr();
  return storage.ss_family == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in &>(storage).sin_port) : 0;
}

/// Over loopback a congestion control that paces by measured bandwidth, as some systems' default does, costs up to two
/// fifths of the throughput. Gloo hides its sockets: they are the connections with `ports`, where it listens, here or
/// on the other side. The process's other sockets stay as they are.
void preferRenoOnLoopback(const std::set<int> &ports) {
  std::error_code error;
  for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    int protocol = 0;
    socklen_t size = sizeof(protocol);
    if (getsockopt(descriptor, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0 || protocol != IPPROTO_TCP) continue;
    const auto peer = addressBy(getpeername, descriptor), own = addressBy(getsockname, descriptor);
    if (!peer || !own || ntohl(peer->sin_addr.s_addr) >> 24 != 127) continue;
    if (!ports.contains(ntohs(peer->sin_port)) && !ports.contains(ntohs(own->sin_port))) continue;
    setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); // not allowed everywhere: then it stays as it is
  }
}

} // namespace

Expected<std::unique_ptr<GlooGroup::Mesh>> GlooGroup::Mesh::make(const JobEnvironment &job) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = job.listenAddress;
  std::unique_ptr<Mesh> mesh(new Mesh(job.rank, job.worldSize));
  mesh->device_ = gloo::transport::tcp::CreateDevice(attributes);
  mesh->transportContext_ = mesh->device_->createContext(job.rank, job.worldSize);
  mesh->setTimeout(job.joinLimit());
  mesh->transportContext_->setTimeout(job.joinLimit());
  for (int peer = 0; peer < job.worldSize; ++peer)
    if (peer != job.rank) mesh->transportContext_->createPair(peer)->setLocalRank(0);
  return mesh;
}

std::string GlooGroup::Mesh::addresses() const {
  nlohmann::json list = nlohmann::json::array();
  for (int peer = 0; peer < size; ++peer) {
    std::vector<char> bytes;
    if (peer != rank) bytes = transportContext_->getPair(peer)->address().bytes();
    list.push_back(nlohmann::json::binary({bytes.begin(), bytes.end()}));
  }
  std::vector<uint8_t> packed = nlohmann::json::to_cbor(list);
  return {packed.begin(), packed.end()};
}

Status GlooGroup::Mesh::connect(const std::vector<std::string> &all) {
  std::set<int> ports;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const nlohmann::json list = nlohmann::json::from_cbor(all[static_cast<size_t>(peer)], true, false);
    if (!list.is_array() || list.size() != static_cast<size_t>(size) || !list[static_cast<size_t>(rank)].is_binary())
      return tilewright::fail(Stage::Communicate, fmt::format("rank {} told no address: is it another version?", peer));
    const auto &bytes = list[static_cast<size_t>(rank)].get_binary();
    try {
      ports.insert(portOf(transportContext_->getPair(peer)->address().bytes()));
      ports.insert(portOf({bytes.begin(), bytes.end()}));
      transportContext_->getPair(peer)->connect({bytes.begin(), bytes.end()});
    } catch (const std::exception &error) {
      return tilewright::fail(Stage::Communicate, fmt::format("cannot connect with rank {}: {}", peer, error.what()));
    }
  }
  preferRenoOnLoopback(ports);
  return {};
}

} // namespace tilewright::dist
