#include "tilewright/distributed/transport/Rendezvous.h"
#include "Socket.h"
#include "TokenProof.h"
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sys/socket.h>
#include <thread>

namespace tilewright::dist {
namespace {

constexpr std::string_view kGreeting = "tilewright rendezvous 1\n";
constexpr size_t kLongestText = size_t{16} << 20;
/// A stranger who connects and stays silent costs this much of one thread, nothing else.
constexpr std::chrono::seconds kProofTime{5};
constexpr size_t kMostStrangers = 64; ///< At a time.
constexpr std::chrono::milliseconds kTurn{20};

std::string hex(std::string_view bytes) {
  std::string text;
  for (unsigned char byte : bytes)
    text += fmt::format("{:02x}", byte);
  return text;
}

/// Whatever a message holds in an entry's place: an entry of another type reads as if it were missing.
std::optional<std::string> bytesOf(const nlohmann::json &json) {
  if (!json.is_binary()) return std::nullopt;
  const auto &binary = json.get_binary();
  return std::string(binary.begin(), binary.end());
}
int integerIn(const nlohmann::json &object, const char *key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int>() : -1;
}
std::string textIn(const nlohmann::json &object, const char *key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}
nlohmann::json binaryOf(std::string_view bytes) { return nlohmann::json::binary({bytes.begin(), bytes.end()}); }
std::string packed(const nlohmann::json &json) {
  std::vector<uint8_t> bytes = nlohmann::json::to_cbor(json);
  return {bytes.begin(), bytes.end()};
}
nlohmann::json unpacked(const std::string &bytes) { return nlohmann::json::from_cbor(bytes, true, false); }

/// What both sides of a connection have drawn.
struct Nonces {
  std::string guest, host;
};

/// A message goes with the proof that its sender knows the token: who shares the connection cannot change it.
Status sendProven(Socket &socket, const JobEnvironment &job, const char *role, const Nonces &nonces,
                  const std::string &message, Deadline deadline) {
  if (Status s = socket.sendFrame(message, deadline); !s) return s;
  return socket.send(proofOf(job.token, {role, nonces.guest, nonces.host, message}), deadline);
}
Expected<nlohmann::json> receiveProven(Socket &socket, const JobEnvironment &job, const char *role,
                                       const Nonces &nonces, size_t most, Deadline deadline) {
  Expected<std::string> message = socket.receiveFrame(most, deadline);
  if (!message) return propagate(message);
  Expected<std::string> proof = socket.receive(kProofBytes, deadline);
  if (!proof) return propagate(proof);
  if (!sameProof(*proof, proofOf(job.token, {role, nonces.guest, nonces.host, *message})))
    return fail(Stage::Communicate, "a message was changed on its way");
  nlohmann::json json = unpacked(*message);
  if (!json.is_object()) return fail(Stage::Communicate, "a message cannot be read: is it another version?");
  return json;
}

/// Rank 0's side: gathers the texts of all, hands them out.
class Host {
public:
  Host(const JobEnvironment &job, Socket listener, Deadline deadline, std::string runId)
      : job(job), listener(std::move(listener)), deadline(deadline), runId(std::move(runId)),
        texts(static_cast<size_t>(job.worldSize)), guests(static_cast<size_t>(job.worldSize)) {}

  Expected<Meeting> run(const std::string &ownText) {
    texts[0] = ownText;
    arrived = 1;
    while (true) {
      bool full;
      {
        std::lock_guard lock(mutex);
        if (!error.empty() || arrived == job.worldSize || std::chrono::steady_clock::now() >= deadline) break;
        visits.remove_if([](Visit &visit) {
          if (visit.over) visit.thread.join();
          return visit.over;
        });
        full = visits.size() >= static_cast<size_t>(job.worldSize) + kMostStrangers;
      }
      if (full) { // each ends in kProofTime
        std::this_thread::sleep_for(kTurn);
        continue;
      }
      Expected<Socket> guest = listener.accept(std::min<Deadline>(deadline, std::chrono::steady_clock::now() + kTurn));
      std::lock_guard lock(mutex);
      if (!guest) {
        error = "rank 0 " + guest.error().message;
        break;
      }
      if (!guest->valid()) continue;
      Visit &visit = visits.emplace_back();
      visit.socket = std::move(*guest);
      visit.thread = std::thread([this, &visit] {
        welcome(visit.socket);
        std::lock_guard over(mutex);
        visit.over = true;
      });
    }
    {
      // Everyone is here: who else has connected is a stranger, and nobody's start waits for it.
      std::lock_guard lock(mutex);
      if (arrived == job.worldSize)
        for (Visit &visit : visits)
          if (visit.socket.valid()) ::shutdown(visit.socket.get(), SHUT_RDWR);
    }
    for (Visit &visit : visits)
      visit.thread.join();
    return conclude();
  }

private:
  struct Guest {
    Socket socket;
    Nonces nonces;
  };
  struct Visit {
    Socket socket; ///< Moved away, under the lock, when the visitor has proved to be a rank.
    std::thread thread;
    bool over = false;
  };

  void welcome(Socket &socket) {
    const Deadline limit = std::min<Deadline>(deadline, std::chrono::steady_clock::now() + kProofTime);
    Expected<std::string> nonce = randomBytes(kNonceBytes);
    if (!nonce || !socket.send(std::string(kGreeting) + *nonce, limit)) return;
    Expected<std::string> answer = socket.receive(kNonceBytes + kProofBytes, limit);
    if (!answer) return;
    const std::string theirs = answer->substr(0, kNonceBytes);
    if (!sameProof(answer->substr(kNonceBytes), proofOf(job.token, {"guest", *nonce, theirs}))) {
      (void)socket.send("-", limit);
      return; // a stranger, or a rank with another token: its own error says so
    }
    if (!socket.send("+" + proofOf(job.token, {"host", theirs, *nonce}), limit)) return;
    const Nonces nonces{theirs, *nonce};
    Expected<nlohmann::json> hello = receiveProven(socket, job, "hello", nonces, kLongestText, limit);
    if (!hello) return;
    const int rank = integerIn(*hello, "rank"), size = integerIn(*hello, "size");
    const std::optional<std::string> text = hello->contains("text") ? bytesOf((*hello)["text"]) : std::nullopt;
    std::lock_guard lock(mutex);
    auto reject = [&](std::string reason) {
      error = std::move(reason);
      rejected.push_back({std::move(socket), nonces});
    };
    if (size != job.worldSize)
      return reject(fmt::format("rank {} was started for {} ranks, rank 0 for {}", rank, size, job.worldSize));
    if (rank < 0 || rank >= job.worldSize || !text)
      return reject(fmt::format("a process says that it is rank {} of {}: is it another version?", rank, size));
    if (rank == 0 || guests[static_cast<size_t>(rank)].socket.valid())
      return reject(fmt::format("two processes say that they are rank {}", rank));
    texts[static_cast<size_t>(rank)] = *text;
    guests[static_cast<size_t>(rank)] = {std::move(socket), nonces};
    ++arrived;
  }

  Expected<Meeting> conclude() {
    if (error.empty() && arrived < job.worldSize) {
      std::vector<int> missing;
      for (int rank = 1; rank < job.worldSize; ++rank)
        if (!guests[static_cast<size_t>(rank)].socket.valid()) missing.push_back(rank);
      error = fmt::format("rank{} {} did not arrive within {} s", missing.size() == 1 ? "" : "s",
                          fmt::join(missing, ", "), static_cast<double>(job.joinLimit().count()) / 1000);
    }
    nlohmann::json answer{{"error", error}, {"run", runId}, {"texts", nlohmann::json::array()}};
    if (error.empty())
      for (const std::string &text : texts)
        answer["texts"].push_back(binaryOf(text));
    const std::string frame = packed(answer);
    const Deadline limit = std::chrono::steady_clock::now() + kProofTime;
    for (auto *list : {&guests, &rejected})
      for (Guest &guest : *list)
        if (guest.socket.valid()) (void)sendProven(guest.socket, job, "answer", guest.nonces, frame, limit);
    if (!error.empty()) return fail(Stage::Communicate, "rendezvous: " + error);
    return Meeting{runId, std::move(texts)};
  }

  const JobEnvironment &job;
  Socket listener;
  const Deadline deadline;
  const std::string runId;
  std::mutex mutex;
  std::vector<std::string> texts;
  std::vector<Guest> guests, rejected;
  std::list<Visit> visits;
  std::string error;
  int arrived = 0;
};

Expected<Meeting> visit(const JobEnvironment &job, const std::string &text, Deadline deadline) {
  Expected<Socket> socket = Socket::connect(job.masterAddress, job.masterPort, deadline);
  if (!socket) return propagate(socket);
  const std::string where = fmt::format("rendezvous with rank 0 at {} port {}", job.masterAddress, job.masterPort);
  auto foreign = [&] {
    return fail(Stage::Communicate, where + ": something else listens there", "choose another MASTER_PORT");
  };
  // The launcher listens before rank 0 runs: the greeting comes when rank 0 does.
  Expected<std::string> greeting = socket->receive(1, deadline);
  if (!greeting && std::chrono::steady_clock::now() >= deadline)
    return fail(Stage::Communicate,
                fmt::format("{}: nobody answered within {} s: rank 0 has not come so far, or something else listens "
                            "there",
                            where, static_cast<double>(job.joinLimit().count()) / 1000),
                "see rank 0's messages; if it has none, choose another MASTER_PORT");
  const Deadline limit = std::chrono::steady_clock::now() + kProofTime;
  Expected<std::string> rest = socket->receive(kGreeting.size() - 1 + kNonceBytes, limit);
  if (!greeting || !rest) return foreign();
  *greeting += *rest;
  if (!greeting->starts_with(kGreeting)) return foreign();
  const std::string theirs = greeting->substr(kGreeting.size());
  Expected<std::string> nonce = randomBytes(kNonceBytes);
  if (!nonce) return propagate(nonce);
  if (Status s = socket->send(*nonce + proofOf(job.token, {"guest", theirs, *nonce}), limit); !s) return propagate(s);
  Expected<std::string> verdict = socket->receive(1, limit);
  if (verdict && *verdict == "-")
    return fail(Stage::Communicate, where + ": it knows another job token and refused this process",
                "give all ranks the same TILEWRIGHT_JOB_TOKEN");
  if (!verdict || *verdict != "+") return foreign();
  Expected<std::string> proof = socket->receive(kProofBytes, limit);
  if (!proof || !sameProof(*proof, proofOf(job.token, {"host", *nonce, theirs})))
    return fail(Stage::Communicate, where + ": it could not prove that it knows the job's token");
  const nlohmann::json hello{{"rank", job.rank}, {"size", job.worldSize}, {"text", binaryOf(text)}};
  const Nonces nonces{*nonce, theirs};
  if (Status s = sendProven(*socket, job, "hello", nonces, packed(hello), deadline); !s) return propagate(s);
  // Rank 0 answers when its own deadline has passed, which may be a little later than this rank's.
  Expected<nlohmann::json> answer = receiveProven(
      *socket, job, "answer", nonces, kLongestText * static_cast<size_t>(job.worldSize), deadline + 2 * kProofTime);
  if (!answer)
    return fail(Stage::Communicate, where + ": " + answer.error().message, "rank 0 may have ended; see its messages");
  if (std::string error = textIn(*answer, "error"); !error.empty())
    return fail(Stage::Communicate, "rendezvous: " + error);
  Meeting meeting{textIn(*answer, "run"), {}};
  if (answer->contains("texts"))
    for (const nlohmann::json &each : (*answer)["texts"])
      if (std::optional<std::string> bytes = bytesOf(each)) meeting.texts.push_back(std::move(*bytes));
  if (meeting.runId.empty() || meeting.texts.size() != static_cast<size_t>(job.worldSize))
    return fail(Stage::Communicate, where + ": its answer is incomplete: is it another version?");
  return meeting;
}

/// A duplicate of the socket that the job's environment names, if it still is one that listens on the job's port: the
/// number may be another file by now, and the original is for the next meeting of this process.
Socket inheritedListener(const JobEnvironment &job) {
  const int original = job.rendezvousSocket;
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (original < 0 || getsockopt(original, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens) return {};
  Socket duplicate(fcntl(original, F_DUPFD_CLOEXEC, 3));
  if (!duplicate.valid() || duplicate.port() != job.masterPort) return {};
  fcntl(original, F_SETFD, FD_CLOEXEC);
  fcntl(original, F_SETFL, fcntl(original, F_GETFL) | O_NONBLOCK); // of both
  return duplicate;
}

} // namespace

Expected<Meeting> meet(const JobEnvironment &job, const std::string &text) {
  Expected<std::string> runId = randomBytes(kNonceBytes);
  if (!runId) return propagate(runId);
  if (job.worldSize == 1) return Meeting{hex(*runId), {text}};
  const Deadline deadline = std::chrono::steady_clock::now() + job.joinLimit();
  if (job.rank != 0) return visit(job, text, deadline);
  Socket inherited = inheritedListener(job);
  Expected<Socket> listener =
      inherited.valid() ? std::move(inherited) : Socket::listen(job.listenAddress, job.masterPort);
  if (!listener) return propagate(listener);
  return Host(job, std::move(*listener), deadline, hex(*runId)).run(text);
}

Expected<ListeningPort> openRendezvousPort(const std::string &address, int port) {
  Expected<Socket> socket = Socket::listen(address, port);
  if (!socket) return propagate(socket);
  const int chosen = socket->port();
  return ListeningPort{socket->release(), chosen};
}

} // namespace tilewright::dist
