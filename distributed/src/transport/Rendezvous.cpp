#include "tilewright/distributed/transport/Rendezvous.h"
#include "Socket.h"
#include "TokenProof.h"
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

namespace tilewright::dist {
namespace {

constexpr std::string_view kGreeting = "tilewright rendezvous 1\n";
constexpr size_t kLongestText = size_t{16} << 20;
/// A stranger who connects and stays silent costs this much of one thread, nothing else.
constexpr std::chrono::seconds kProofTime{5};

std::string hex(std::string_view bytes) {
  std::string text;
  for (unsigned char byte : bytes)
    text += fmt::format("{:02x}", byte);
  return text;
}

std::string bytesOf(const nlohmann::json &json) {
  const auto &binary = json.get_binary();
  return {binary.begin(), binary.end()};
}
nlohmann::json binaryOf(std::string_view bytes) { return nlohmann::json::binary({bytes.begin(), bytes.end()}); }
std::string packed(const nlohmann::json &json) {
  std::vector<uint8_t> bytes = nlohmann::json::to_cbor(json);
  return {bytes.begin(), bytes.end()};
}
nlohmann::json unpacked(const std::string &bytes) { return nlohmann::json::from_cbor(bytes, true, false); }

/// Rank 0's side: gathers the texts of all, hands them out.
class Host {
public:
  Host(const JobEnvironment &job, Socket listener, Deadline deadline, std::string runId)
      : job(job), listener(std::move(listener)), deadline(deadline), runId(std::move(runId)),
        texts(static_cast<size_t>(job.worldSize)), guests(static_cast<size_t>(job.worldSize)) {}

  Expected<Meeting> run(const std::string &ownText) {
    texts[0] = ownText;
    arrived = 1;
    std::vector<std::thread> threads;
    while (true) {
      {
        std::lock_guard lock(mutex);
        if (!error.empty() || arrived == job.worldSize || std::chrono::steady_clock::now() >= deadline) break;
      }
      Expected<Socket> guest = listener.accept(
          std::min<Deadline>(deadline, std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
      if (guest && guest->valid())
        threads.emplace_back([this, socket = std::move(*guest)]() mutable { welcome(std::move(socket)); });
    }
    for (std::thread &thread : threads)
      thread.join();
    return conclude();
  }

private:
  void welcome(Socket socket) {
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
    Expected<std::string> frame = socket.receiveFrame(kLongestText, limit);
    if (!frame) return;
    const nlohmann::json hello = unpacked(*frame);
    if (!hello.is_object()) return;
    const int rank = hello.value("rank", -1), size = hello.value("size", -1);
    std::lock_guard lock(mutex);
    if (size != job.worldSize) {
      error = fmt::format("rank {} was started for {} ranks, rank 0 for {}", rank, size, job.worldSize);
      rejected.push_back(std::move(socket));
    } else if (rank < 1 || rank >= job.worldSize || guests[static_cast<size_t>(rank)].valid()) {
      error = fmt::format("two processes say that they are rank {}", rank);
      rejected.push_back(std::move(socket));
    } else {
      texts[static_cast<size_t>(rank)] = bytesOf(hello["text"]);
      guests[static_cast<size_t>(rank)] = std::move(socket);
      ++arrived;
    }
  }

  Expected<Meeting> conclude() {
    if (error.empty() && arrived < job.worldSize) {
      std::vector<int> missing;
      for (int rank = 1; rank < job.worldSize; ++rank)
        if (!guests[static_cast<size_t>(rank)].valid()) missing.push_back(rank);
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
      for (Socket &guest : *list)
        if (guest.valid()) (void)guest.sendFrame(frame, limit);
    if (!error.empty()) return fail(Stage::Communicate, "rendezvous: " + error);
    return Meeting{runId, std::move(texts)};
  }

  const JobEnvironment &job;
  Socket listener;
  const Deadline deadline;
  const std::string runId;
  std::mutex mutex;
  std::vector<std::string> texts;
  std::vector<Socket> guests, rejected;
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
  const Deadline limit = std::min<Deadline>(deadline, std::chrono::steady_clock::now() + kProofTime);
  Expected<std::string> greeting = socket->receive(kGreeting.size() + kNonceBytes, limit);
  if (!greeting || !greeting->starts_with(kGreeting)) return foreign();
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
  if (Status s = socket->sendFrame(packed(hello), deadline); !s) return propagate(s);
  // Rank 0 answers when its own deadline has passed, which may be a little later than this rank's.
  Expected<std::string> frame =
      socket->receiveFrame(kLongestText * static_cast<size_t>(job.worldSize), deadline + 2 * kProofTime);
  if (!frame)
    return fail(Stage::Communicate, where + ": " + frame.error().message, "rank 0 may have ended; see its messages");
  const nlohmann::json answer = unpacked(*frame);
  if (!answer.is_object() || !answer.contains("texts")) return foreign();
  if (std::string error = answer.value("error", ""); !error.empty())
    return fail(Stage::Communicate, "rendezvous: " + error);
  Meeting meeting{answer.value("run", ""), {}};
  for (const nlohmann::json &each : answer["texts"])
    meeting.texts.push_back(bytesOf(each));
  return meeting;
}

} // namespace

Expected<Meeting> meet(const JobEnvironment &job, const std::string &text) {
  Expected<std::string> runId = randomBytes(kNonceBytes);
  if (!runId) return propagate(runId);
  if (job.worldSize == 1) return Meeting{hex(*runId), {text}};
  const Deadline deadline = std::chrono::steady_clock::now() + job.joinLimit();
  if (job.rank != 0) return visit(job, text, deadline);
  if (job.rendezvousSocket >= 0) {
    fcntl(job.rendezvousSocket, F_SETFD, FD_CLOEXEC);
    return Host(job, Socket(job.rendezvousSocket), deadline, hex(*runId)).run(text);
  }
  Expected<Socket> listener = Socket::listen(job.listenAddress, job.masterPort);
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
