#include "PeerProcess.h"
#include "Embedded.h"
#include "GpuMonitor.h"
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace tilewright::bench {
namespace {

constexpr double kPollSeconds = 0.2; ///< How soon an interrupt is noticed.
constexpr double kFarewellSeconds = 2;

} // namespace

Expected<std::unique_ptr<PeerProcess>> PeerProcess::start(const std::string &python) {
  Expected<TemporaryFolder> folder = TemporaryFolder::make("peers");
  if (!folder) return propagate(folder);
  std::unique_ptr<PeerProcess> process(new PeerProcess(std::move(*folder)));
  const std::string script = process->folder.path() / "peers.py", log = process->folder.path() / "log";
  std::ofstream file(script, std::ios::binary);
  file << embeddedFile("peers.py");
  file.close();
  if (!file) return fail(Stage::Output, fmt::format("cannot write {}: {}", script, std::strerror(errno)));

  // A socket instead of pipes: writing to a child that is gone is then an error, not a signal.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(Stage::Communicate, fmt::format("cannot make a socket pair: {}", std::strerror(errno)));
  process->channel = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  std::string arguments[] = {python, "-u", script};
  char *argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  const int code = posix_spawnp(&process->child, python.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  if (code != 0) {
    process->child = -1;
    return fail(Stage::Communicate, fmt::format("cannot start {}: {}", python, std::strerror(code)),
                "let --python name a Python 3 with PyTorch, or give --peers none");
  }
  return process;
}

PeerProcess::~PeerProcess() { end(); }

void PeerProcess::end() {
  if (channel >= 0) close(channel); // the child's loop ends with its input
  channel = -1;
  if (child <= 0) return;
  for (double until = monotonicSeconds() + kFarewellSeconds; monotonicSeconds() < until; usleep(20000))
    if (waitpid(child, nullptr, WNOHANG) != 0) {
      child = -1;
      return;
    }
  // Its session holds the helpers that it started, too.
  kill(-child, SIGKILL);
  waitpid(child, nullptr, 0);
  child = -1;
}

std::string PeerProcess::lastWords() const {
  std::ifstream log(folder.path() / "log");
  std::string line, last;
  while (std::getline(log, line))
    if (!line.empty()) last = line;
  return last;
}

Expected<nlohmann::json> PeerProcess::ask(const nlohmann::json &request, double timeoutSeconds,
                                          const std::atomic<bool> *interrupted) {
  auto gone = [&](std::string_view how) -> tl::unexpected<Error> {
    end();
    const std::string words = lastWords();
    return fail(Stage::Communicate,
                fmt::format("the peers' Python {}{}{}", how, words.empty() ? "" : "; its last words: ", words));
  };
  if (channel < 0) return fail(Stage::Communicate, "the peers' Python has ended");
  const std::string line = request.dump() + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = send(channel, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return gone("is gone");
    sent += static_cast<size_t>(count);
  }
  const double until = monotonicSeconds() + timeoutSeconds;
  for (;;) {
    if (size_t newline = pending.find('\n'); newline != std::string::npos) {
      nlohmann::json reply = nlohmann::json::parse(pending.substr(0, newline), nullptr, false);
      pending.erase(0, newline + 1);
      if (!reply.is_object() || !reply.contains("ok") || !reply["ok"].is_boolean())
        return gone("sent something that is no reply");
      return reply;
    }
    if (interrupted && *interrupted) return gone("was interrupted");
    if (monotonicSeconds() > until) return gone(fmt::format("gave no reply within {} s", timeoutSeconds));
    pollfd waiting{channel, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(kPollSeconds * 1000)) <= 0) continue;
    char buffer[4096];
    const ssize_t count = recv(channel, buffer, sizeof(buffer), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return gone("ended without a reply");
    pending.append(buffer, static_cast<size_t>(count));
  }
}

} // namespace tilewright::bench
