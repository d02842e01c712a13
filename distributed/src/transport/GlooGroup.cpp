#include "GlooGroup.h"
#include "GlooMesh.h"
#include "TokenProof.h"
#include "tilewright/distributed/transport/Rendezvous.h"
#include <algorithm>
#include <csignal>
#include <cstring>
#include <fmt/format.h>

namespace tilewright::dist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kControlSlot = uint64_t{0x81} << 56, kProofSlot = uint64_t{0x82} << 56;
/// What a rank sent before its goodbye, or before it gave up, has arrived after this.
constexpr std::chrono::milliseconds kDelivery{200};
constexpr std::chrono::hours kForEver{24 * 365}; ///< Gloo takes 0 for "now" and -1 for its own default.

} // namespace

SigpipeBlock::SigpipeBlock() {
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  wasBlocked = sigismember(&before, SIGPIPE);
}

SigpipeBlock::~SigpipeBlock() {
  if (wasBlocked) return;
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec now{0, 0};
  sigtimedwait(&pipe, nullptr, &now); // one that came meanwhile would kill the process when unblocked
  pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}

Expected<std::unique_ptr<GlooGroup>> GlooGroup::connect(const JobEnvironment &job) {
  std::unique_ptr<GlooGroup> group(new GlooGroup(job));
  SigpipeBlock block; // its threads inherit the mask
  try {
    if (Status status = group->open(); !status) return propagate(status);
  } catch (const std::exception &error) {
    return tilewright::fail(Stage::Communicate,
                            fmt::format("cannot connect rank {} with the others: {}", job.rank, error.what()));
  }
  return group;
}

Status GlooGroup::open() {
  Expected<std::unique_ptr<Mesh>> made = Mesh::make(job);
  if (!made) return propagate(made);
  mesh = std::move(*made);
  Expected<Meeting> meeting = meet(job, mesh->addresses());
  if (!meeting) return propagate(meeting);
  if (Status status = mesh->connect(meeting->texts); !status) return status;
  if (Status status = prove(meeting->runId); !status) return status;
  for (int peer = 0; peer < job.worldSize; ++peer) {
    if (peer == job.rank) continue;
    Peer &state = peers[static_cast<size_t>(peer)];
    state.control = mesh->buffer(&state.incoming, sizeof(state.incoming));
    state.listener = std::thread([this, peer] { listen(peer); });
  }
  watcher = std::thread([this] { watch(); });
  return {};
}

/// Gloo takes the first that connects for the peer. So both sides prove, on the connection itself, that they are who
/// the rendezvous was with.
Status GlooGroup::prove(const std::string &runId) {
  Expected<std::string> nonce = randomBytes(kNonceBytes);
  if (!nonce) return propagate(nonce);
  const size_t n = peers.size();
  const auto limit = std::min<std::chrono::milliseconds>(job.joinLimit(), std::chrono::seconds(10));
  std::vector<std::string> nonces(n, std::string(kNonceBytes, '\0')), proofs(n),
      theirs(n, std::string(kProofBytes, '\0'));
  auto round = [&](uint64_t slot, auto outgoingOf, std::vector<std::string> &incoming) {
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> sends(n), receives(n);
    for (int peer = 0; peer < job.worldSize; ++peer) {
      if (peer == job.rank) continue;
      const size_t p = static_cast<size_t>(peer);
      std::string &out = outgoingOf(p);
      sends[p] = mesh->buffer(out.data(), out.size());
      receives[p] = mesh->buffer(incoming[p].data(), incoming[p].size());
      receives[p]->recv(peer, slot);
      sends[p]->send(peer, slot);
    }
    int stuck = -1;
    for (int peer = 0; peer < job.worldSize && stuck < 0; ++peer) {
      if (peer == job.rank) continue;
      const size_t p = static_cast<size_t>(peer);
      try {
        if (!receives[p]->waitRecv(limit) || !sends[p]->waitSend(limit)) stuck = peer;
      } catch (const std::exception &) {
        stuck = peer;
      }
    }
    if (stuck >= 0) mesh->close(); // before the buffers go
    return stuck;
  };
  auto refused = [&](int peer) {
    return tilewright::fail(Stage::Communicate,
                            fmt::format("the connection that should be rank {}'s could not prove that it knows "
                                        "the job's token: a stranger took it, or the rank has ended",
                                        peer));
  };
  if (int stuck = round(
          kProofSlot, [&](size_t) -> std::string & { return *nonce; }, nonces);
      stuck >= 0)
    return refused(stuck);
  auto proofFor = [&](int from, int to, const std::string &fromNonce, const std::string &toNonce) {
    return proofOf(job.token, {"pair", runId, std::to_string(from), std::to_string(to), fromNonce, toNonce});
  };
  for (int peer = 0; peer < job.worldSize; ++peer)
    proofs[static_cast<size_t>(peer)] = proofFor(job.rank, peer, *nonce, nonces[static_cast<size_t>(peer)]);
  if (int stuck = round(
          kProofSlot + 1, [&](size_t p) -> std::string & { return proofs[p]; }, theirs);
      stuck >= 0)
    return refused(stuck);
  for (int peer = 0; peer < job.worldSize; ++peer) {
    const size_t p = static_cast<size_t>(peer);
    if (peer != job.rank && !sameProof(theirs[p], proofFor(peer, job.rank, nonces[p], *nonce))) {
      mesh->close();
      return refused(peer);
    }
  }
  return {};
}

GlooGroup::GlooGroup(const JobEnvironment &job) : job(job), peers(static_cast<size_t>(job.worldSize)) {}

GlooGroup::~GlooGroup() {
  if (!mesh) return;
  SigpipeBlock block;
  if (watcher.joinable() && !closed && status()) {
    for (int peer = 0; peer < job.worldSize; ++peer)
      if (peer != job.rank) tell(peer, Message::Goodbye, "");
    // What this rank sent last may still be on its way: closing earlier could drop it.
    std::unique_lock lock(mutex);
    changed.wait_for(lock, job.timeout, [&] {
      return !failure.empty() || std::all_of(peers.begin(), peers.end(), [&](const Peer &p) {
        return p.gone || &p == &peers[static_cast<size_t>(job.rank)];
      });
    });
  }
  std::vector<Posted> none;
  close(none);
}

void GlooGroup::close(std::vector<Posted> &posted) {
  SigpipeBlock block;
  if (!closed) {
    {
      std::lock_guard lock(mutex);
      stopping = true;
      changed.notify_all();
    }
    if (watcher.joinable()) watcher.join();
    // Closing resets connections: notices need the time to be read.
    if (!failure.empty()) std::this_thread::sleep_until(failedAt + kDelivery);
    for (Peer &peer : peers)
      if (peer.control) peer.control->abortWaitRecv();
    for (Peer &peer : peers)
      if (peer.listener.joinable()) peer.listener.join();
    mesh->close();
    for (Peer &peer : peers)
      peer.control.reset();
    closed = true;
  }
  posted.clear();
  std::lock_guard lock(outgoingMutex);
  outgoing.clear();
}

void GlooGroup::begin(std::string name) {
  std::lock_guard lock(mutex);
  operation = std::move(name);
}

void GlooGroup::end() {
  std::lock_guard lock(mutex);
  operation.clear();
}

std::string GlooGroup::describe(int peer, const std::string &what) {
  return fmt::format("{}rank {} {}", operation.empty() ? "" : operation + ": ", peer, what);
}

Status GlooGroup::status() {
  std::lock_guard lock(mutex);
  if (failure.empty()) return {};
  return tilewright::fail(Stage::Communicate, failure);
}

void GlooGroup::abort(const std::string &reason) { fail(fmt::format("rank {} gave up: {}", job.rank, reason), true); }

void GlooGroup::fail(const std::string &message, bool tellOthers) {
  {
    std::lock_guard lock(mutex);
    if (!failure.empty() || stopping) return;
    failure = message;
    failedAt = Clock::now();
    if (current) {
      if (current->isSend)
        current->buffer->abortWaitSend();
      else
        current->buffer->abortWaitRecv();
    }
    changed.notify_all();
  }
  if (!tellOthers) return;
  for (int peer = 0; peer < job.worldSize; ++peer)
    if (peer != job.rank) tell(peer, Message::Abort, message);
}

void GlooGroup::tell(int peer, Message kind, const std::string &text) {
  std::lock_guard lock(outgoingMutex);
  auto &[message, posted] = outgoing.emplace_back();
  message.kind = static_cast<uint32_t>(kind);
  std::memcpy(message.text, text.data(), std::min(text.size(), sizeof(message.text) - 1));
  try {
    posted.buffer = mesh->buffer(&message, sizeof(message));
    posted.buffer->send(peer, kControlSlot);
  } catch (const std::exception &) {
    // The connection is gone; its listener reports that.
  }
}

void GlooGroup::listen(int peer) {
  Peer &state = peers[static_cast<size_t>(peer)];
  try {
    while (true) {
      state.control->recv(peer, kControlSlot);
      if (!state.control->waitRecv(kForEver)) return; // close() wants it to end
      handle(peer, state.incoming);
    }
  } catch (const std::exception &) {
    std::string message;
    {
      std::lock_guard lock(mutex);
      if (stopping || state.gone) return;
      message = describe(peer, "has died or lost its connection");
    }
    fail(message, true);
  }
}

void GlooGroup::handle(int peer, const Control &message) {
  Peer &state = peers[static_cast<size_t>(peer)];
  switch (static_cast<Message>(message.kind)) {
  case Message::Abort:
    return fail(std::string(message.text, strnlen(message.text, sizeof(message.text))), false);
  case Message::Ping:
    return tell(peer, Message::Pong, "");
  case Message::Goodbye:
  case Message::Pong: {
    std::lock_guard lock(mutex);
    if (static_cast<Message>(message.kind) == Message::Pong)
      state.answered = true;
    else {
      state.gone = true;
      state.goneSince = Clock::now();
    }
    changed.notify_all();
  }
  }
}

void GlooGroup::watch() {
  const auto tick = std::min<std::chrono::milliseconds>(std::chrono::milliseconds(50), job.timeout / 10);
  std::unique_lock lock(mutex);
  while (!stopping) {
    changed.wait_for(lock, tick, [&] { return stopping; });
    if (stopping || !failure.empty() || !current) continue;
    const auto now = Clock::now();
    const Peer &peer = peers[static_cast<size_t>(current->peer)];
    if (peer.gone && now - std::max(peer.goneSince, waitingSince) > kDelivery) {
      std::string message = describe(current->peer, "has ended its part of the job");
      lock.unlock();
      fail(message, true);
      lock.lock();
    } else if (now - std::max(waitingSince, askedAt) > job.timeout) {
      lock.unlock();
      judge();
      lock.lock();
    }
  }
}

int GlooGroup::silentPeer() {
  std::lock_guard turn(pinging);
  {
    std::lock_guard lock(mutex);
    for (Peer &peer : peers)
      peer.answered = false;
  }
  for (int peer = 0; peer < job.worldSize; ++peer)
    if (peer != job.rank) tell(peer, Message::Ping, "");
  // An answer takes no more than a thread's turn, but machines may be busy: a rank is lost for good once it is blamed.
  const auto patience =
      std::clamp<std::chrono::milliseconds>(job.timeout / 3, std::chrono::seconds(2), std::chrono::seconds(10));
  std::unique_lock lock(mutex);
  auto silent = [&]() -> int {
    for (int peer = 0; peer < job.worldSize; ++peer) {
      const Peer &state = peers[static_cast<size_t>(peer)];
      if (peer != job.rank && !state.gone && !state.answered) return peer;
    }
    return -1;
  };
  changed.wait_for(lock, patience, [&] { return stopping || !failure.empty() || silent() < 0; });
  return stopping || !failure.empty() ? -1 : silent();
}

std::string GlooGroup::describeSilence(int peer) {
  return describe(peer, fmt::format("did not respond within {} s: it has stopped or cannot be reached",
                                    static_cast<double>(job.timeout.count()) / 1000));
}

Status GlooGroup::ping() {
  if (Status s = status(); !s) return s;
  if (const int silent = silentPeer(); silent >= 0) {
    std::string message;
    {
      std::lock_guard lock(mutex);
      message = describeSilence(silent);
    }
    fail(message, true);
  }
  return status();
}

/// The peer that is waited for may itself wait for another: whoever does not answer is at fault.
void GlooGroup::judge() {
  Clock::time_point since;
  {
    std::lock_guard lock(mutex);
    if (!current) return;
    since = waitingSince;
  }
  const int silent = silentPeer();
  std::string message;
  {
    std::lock_guard lock(mutex);
    if (stopping || !failure.empty() || !current || waitingSince != since) return;
    askedAt = Clock::now();
    const auto limit = std::max(job.timeout, job.hangTimeout);
    if (silent >= 0)
      message = describeSilence(silent);
    else if (askedAt - since > limit)
      message = describe(current->peer, fmt::format("is alive, but did not take part within {} s",
                                                    static_cast<double>(limit.count()) / 1000));
    else
      return;
  }
  fail(message, true);
}

Expected<Posted> GlooGroup::send(int peer, uint64_t slot, const void *data, size_t bytes) {
  Posted posted{nullptr, peer, true};
  try {
    posted.buffer = mesh->buffer(const_cast<void *>(data), bytes);
    posted.buffer->send(peer, slot);
  } catch (const std::exception &) {
    return wait(posted).map([] { return Posted{}; });
  }
  return posted;
}

Expected<Posted> GlooGroup::receive(int peer, uint64_t slot, void *data, size_t bytes) {
  Posted posted{nullptr, peer, false};
  try {
    posted.buffer = mesh->buffer(data, bytes);
    posted.buffer->recv(peer, slot);
  } catch (const std::exception &) {
    return wait(posted).map([] { return Posted{}; });
  }
  return posted;
}

Status GlooGroup::wait(Posted &posted) {
  {
    std::lock_guard lock(mutex);
    if (!failure.empty()) return tilewright::fail(Stage::Communicate, failure);
    current = &posted;
    waitingSince = Clock::now();
  }
  bool done = false;
  try {
    done = posted.isSend ? posted.buffer->waitSend(kForEver) : posted.buffer->waitRecv(kForEver);
  } catch (const std::exception &) {
  }
  std::unique_lock lock(mutex);
  current = nullptr;
  if (done && failure.empty()) return {};
  // The connection is lost; the peer's last words may say that another rank is the reason.
  changed.wait_for(lock, std::chrono::milliseconds(500), [&] { return !failure.empty(); });
  if (failure.empty()) {
    std::string message = describe(posted.peer, "has lost its connection");
    lock.unlock();
    fail(message, true);
    lock.lock();
  }
  return tilewright::fail(Stage::Communicate, failure);
}

} // namespace tilewright::dist
