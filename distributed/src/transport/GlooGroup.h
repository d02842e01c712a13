// Connections to all other ranks over Gloo, and what keeps a lost, stopped or departed rank from hanging the others.
//
// Each peer has a control channel with a receive always pending. It carries abort notices (the first rank that sees a
// failure tells the others which rank is at fault), goodbyes, and pings: a rank that waits too long asks who is still
// alive before it blames anyone. A killed peer shows as a closed control channel at once, even when Gloo would let the
// payload that is on its way wait for its full timeout. Ranks that answer are waited for much longer. Gloo's own timeouts are never used: one closes all connections.
#pragma once

#include "tilewright/distributed/transport/JobEnvironment.h"
#include <condition_variable>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tilewright::dist {

/// Blocks SIGPIPE in this thread: Gloo writes to connections that the other side may have closed.
class SigpipeBlock {
public:
  SigpipeBlock();
  ~SigpipeBlock();
  SigpipeBlock(const SigpipeBlock &) = delete;
  SigpipeBlock &operator=(const SigpipeBlock &) = delete;

private:
  bool wasBlocked = false;
};

/// A send or receive that was posted.
struct Posted {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  int peer = 0;
  bool isSend = false;
};

class GlooGroup {
public:
  static Expected<std::unique_ptr<GlooGroup>> connect(const JobEnvironment &job);
  ~GlooGroup();

  const JobEnvironment &environment() const { return job; }

  /// Names the operation that the following waits belong to.
  void begin(std::string operation);
  void end();

  Expected<Posted> send(int peer, uint64_t slot, const void *data, size_t bytes);
  Expected<Posted> receive(int peer, uint64_t slot, void *data, size_t bytes);
  Status wait(Posted &posted);

  /// The first failure. After it no memory that was posted is touched any more once close() has returned.
  Status status();
  /// Asks all other ranks whether they live; one that does not answer is the failure. From any thread.
  Status ping();
  void abort(const std::string &reason);
  /// Ends the connections of a failed group; keeps `posted` until they are.
  void close(std::vector<Posted> &posted);

private:
  class Mesh;
  enum class Message : uint32_t { Abort = 1, Goodbye, Ping, Pong };
  static constexpr size_t kControlBytes = 1024;
  struct Control {
    uint32_t kind = 0;
    char text[kControlBytes - sizeof(uint32_t)] = {};
  };
  struct Peer {
    std::thread listener;
    std::unique_ptr<gloo::transport::UnboundBuffer> control; ///< Over `incoming`.
    Control incoming;
    bool gone = false; ///< It said goodbye.
    std::chrono::steady_clock::time_point goneSince;
    bool answered = false;
  };

  explicit GlooGroup(const JobEnvironment &job);
  Status open();
  Status prove(const std::string &runId);
  void listen(int peer);
  void watch();
  void judge();
  /// The first rank that does not answer a ping; -1 if all do.
  int silentPeer();
  std::string describeSilence(int peer);
  void tell(int peer, Message kind, const std::string &text);
  void handle(int peer, const Control &message);
  void fail(const std::string &message, bool tellOthers);
  std::string describe(int peer, const std::string &what);

  const JobEnvironment job;
  std::unique_ptr<Mesh> mesh;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Peer> peers;
  std::string failure, operation;
  std::chrono::steady_clock::time_point failedAt;
  Posted *current = nullptr;
  std::chrono::steady_clock::time_point waitingSince, askedAt;
  bool stopping = false, closed = false;
  std::thread watcher;
  std::mutex pinging; ///< Held from a ping to its answers.
  std::mutex outgoingMutex;
  std::list<std::pair<Control, Posted>> outgoing; ///< Kept until the connections are closed: Gloo may still read them.
};

} // namespace tilewright::dist
