#include "WorkerProcess.h"
#include "WorkerCommand.h"
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace tilewright::tune {
namespace {

std::string lastLine(const std::filesystem::path &log) {
  std::ifstream file(log);
  std::string line, last;
  while (std::getline(file, line))
    if (!line.empty()) last = line;
  constexpr size_t kLongest = 200;
  return last.substr(0, kLongest);
}

} // namespace

Expected<std::unique_ptr<WorkerProcess>> WorkerProcess::start(const std::filesystem::path &log,
                                                              const std::filesystem::path &cache) {
  // A socket instead of pipes: writing to a child that is gone is then an error, not a signal.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(Stage::Communicate, fmt::format("cannot make a socket pair: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  std::string arguments[] = {"tilewright", std::string(kWorkerCommand), cache.string()};
  char *argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  pid_t child = -1;
  const int code = posix_spawn(&child, "/proc/self/exe", &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  if (code != 0) {
    close(ends[0]);
    return fail(Stage::Communicate, fmt::format("cannot start a worker: {}", std::strerror(code)),
                "is the machine out of memory or processes?");
  }
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(child, ends[0], log));
}

WorkerProcess::~WorkerProcess() { end(); }

bool WorkerProcess::send(const WorkerRequest &request) {
  if (socket < 0) return false;
  const std::string line = toJson(request).dump() + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = ::send(socket, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

WorkerProcess::Heard WorkerProcess::hear(nlohmann::json &reply) {
  for (;;) {
    if (const size_t newline = pending.find('\n'); newline != std::string::npos) {
      reply = nlohmann::json::parse(pending.substr(0, newline), nullptr, false);
      pending.erase(0, newline + 1);
      return Heard::Reply;
    }
    char buffer[1 << 14];
    const ssize_t count = recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Heard::Nothing;
    if (count <= 0) return Heard::End;
    pending.append(buffer, static_cast<size_t>(count));
  }
}

std::string WorkerProcess::end() {
  if (socket >= 0) close(socket);
  socket = -1;
  if (child <= 0) return {};
  // One that is on its way out tells how by itself; its session holds whatever it started, too.
  int status = 0;
  constexpr int kMoments = 50;
  pid_t gone = 0;
  for (int i = 0; i < kMoments && (gone = waitpid(child, &status, WNOHANG)) == 0; ++i)
    usleep(2000);
  if (gone == 0) {
    kill(-child, SIGKILL);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  child = -1;
  std::string how = WIFSIGNALED(status)
                        ? fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                        : fmt::format("over with exit code {}", WEXITSTATUS(status));
  if (const std::string words = lastLine(log); !words.empty()) how += "; its last words: " + words;
  return how;
}

} // namespace tilewright::tune
