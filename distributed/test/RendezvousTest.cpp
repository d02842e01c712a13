#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/distributed/transport/Rendezvous.h"
#include "RankProcesses.h"
#include "transport/Socket.h"
#include "transport/TokenProof.h"
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

using namespace tilewright;
using namespace tilewright::dist;
using Say = std::function<void(const std::string &)>;

namespace {

/// Meets with its rank as text; 0 if all texts came.
int meetOthers(const JobEnvironment &job, const Say &say) {
  auto meeting = meet(job, fmt::format("rank {}", job.rank));
  if (!meeting) {
    say(meeting.error().text());
    return 2;
  }
  for (int rank = 0; rank < job.worldSize; ++rank)
    if (meeting->texts[static_cast<size_t>(rank)] != fmt::format("rank {}", rank)) return 1;
  return 0;
}

void allMeet(RankProcesses job) {
  for (const RankResult &result : job.wait())
    CHECK_MESSAGE(result.exitCode == 0, result.said);
}

/// Knows the token, says `hello`, and hears what rank 0 has to say.
int visitWith(const JobEnvironment &job, const nlohmann::json &hello, const Say &say, bool changed = false) {
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  auto socket = Socket::connect(job.masterAddress, job.masterPort, deadline);
  if (!socket) return 3;
  constexpr std::string_view kGreeting = "tilewright rendezvous 1\n";
  auto greeting = socket->receive(kGreeting.size() + kNonceBytes, deadline);
  if (!greeting) return 4;
  const std::string theirs = greeting->substr(kGreeting.size()), own(kNonceBytes, 'n');
  if (!socket->send(own + proofOf(job.token, {"guest", theirs, own}), deadline)) return 5;
  if (auto verdict = socket->receive(1 + kProofBytes, deadline); !verdict || verdict->front() != '+') return 6;
  const std::vector<uint8_t> packed = nlohmann::json::to_cbor(hello);
  const std::string message(packed.begin(), packed.end());
  if (!socket->sendFrame(message, deadline)) return 7;
  if (!socket->send(proofOf(job.token, {"hello", own, theirs, changed ? message + "x" : message}), deadline)) return 8;
  auto answer = socket->receiveFrame(1 << 20, deadline);
  say(answer ? *answer : "no answer");
  return 0;
}

} // namespace

TEST_CASE("rank 0 may come later than the others, though its port is open from the start") {
  allMeet(RankProcesses(3, [](const JobEnvironment &job, const Say &say) {
    if (job.rank == 0) sleep(7);
    return meetOthers(job, say);
  }));
}

TEST_CASE("a process meets twice over the socket that it inherited; a number that is another file now is left alone") {
  allMeet(RankProcesses(2, [](const JobEnvironment &job, const Say &say) {
    for (int meeting = 0; meeting < 3; ++meeting)
      if (int code = meetOthers(job, say)) return code;
    return 0;
  }));
  for (bool isPipe : {true, false}) { // or it listens on another port
    auto another = openRendezvousPort("127.0.0.1", 0);
    REQUIRE(another);
    close(another->socket);
    allMeet(RankProcesses(2, [&](JobEnvironment job, const Say &say) {
      job.masterPort = another->port;
      int ends[2];
      if (job.rank == 0 && isPipe && (pipe(ends) != 0 || dup2(ends[0], job.rendezvousSocket) < 0)) return 3;
      if (int code = meetOthers(job, say)) return code;
      return job.rank != 0 || fcntl(job.rendezvousSocket, F_GETFD) >= 0 ? 0 : 4;
    }));
  }
}

TEST_CASE("a hello that is no hello is refused in words, not by rank 0's end") {
  for (const nlohmann::json &hello :
       {nlohmann::json{{"rank", "one"}, {"size", 2}, {"text", nlohmann::json::binary({})}},
        nlohmann::json{{"rank", 1}, {"size", 2}, {"text", "no bytes"}}, nlohmann::json{{"rank", 1}, {"size", 2}}}) {
    RankProcesses job(2, [&](const JobEnvironment &job, const Say &say) {
      return job.rank == 0 ? meetOthers(job, say) : visitWith(job, hello, say);
    });
    const RankResult &host = job.waitFor(0);
    CHECK(host.exitCode == 2);
    CHECK_MESSAGE(host.said.find("is it another version?") != std::string::npos, host.said);
    CHECK(job.waitFor(1).said.find("is it another version?") != std::string::npos);
  }
}

TEST_CASE("a hello that was changed on its way counts for nothing, and neither does a stranger who says nothing") {
  allMeet(RankProcesses(2, [](const JobEnvironment &job, const Say &say) {
    if (job.rank == 1) {
      auto stranger = Socket::connect(job.masterAddress, job.masterPort,
                                      std::chrono::steady_clock::now() + std::chrono::seconds(60));
      const nlohmann::json hello{{"rank", 1}, {"size", 2}, {"text", nlohmann::json::binary({1})}};
      if (int code = visitWith(
              job, hello, [](const std::string &) {}, true))
        return code;
      return meetOthers(job, say);
    }
    return meetOthers(job, say);
  }));
}
