#include "RankProcess.h"
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tilewright::tool {
namespace {

constexpr size_t kRecentLines = 5;
/// A line longer than this is passed on in parts.
constexpr size_t kLongestLine = 1 << 16;

/// In the child, up to exec: nothing here may allocate or lock.
[[noreturn]] void becomeRank(char *const *arguments, char *const *environment, const int (&ends)[2], int errorPipe,
                             int inherited, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127); // the launcher ended in between
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int input = open("/dev/null", O_RDONLY); // a group in the background must not read the terminal
  dup2(input, STDIN_FILENO);
  dup2(ends[0], STDOUT_FILENO);
  dup2(ends[1], STDERR_FILENO);
  if (inherited >= 0) fcntl(inherited, F_SETFD, 0);
  execvpe(arguments[0], arguments, environment);
  const int code = errno;
  (void)!write(errorPipe, &code, sizeof(code));
  _exit(127);
}

std::vector<std::string> environmentWith(const RankProcess::Variables &variables) {
  std::vector<std::string> entries;
  for (char **entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const auto &[key, value] : variables)
      replaced |= key == name;
    if (!replaced) entries.emplace_back(text);
  }
  for (const auto &[key, value] : variables)
    entries.push_back(key + "=" + value);
  return entries;
}

std::vector<char *> pointers(std::vector<std::string> &strings) {
  std::vector<char *> list;
  for (std::string &text : strings)
    list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

} // namespace

Expected<RankProcess> RankProcess::start(int rank, const std::vector<std::string> &command, const Variables &variables,
                                         int inherited) {
  int out[2], err[2], error[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0)
    return fail(Stage::Launch, fmt::format("launch: no pipe for rank {}: {}", rank, std::strerror(errno)));
  std::vector<std::string> arguments = command, environment = environmentWith(variables);
  std::vector<char *> argumentList = pointers(arguments), environmentList = pointers(environment);
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) becomeRank(argumentList.data(), environmentList.data(), {out[1], err[1]}, error[1], inherited, parent);
  for (int end : {out[1], err[1], error[1]})
    close(end);
  int code = pid < 0 ? errno : 0;
  if (pid > 0) {
    setpgid(pid, pid); // both sides do it: neither knows who is first
    if (read(error[0], &code, sizeof(code)) != sizeof(code)) code = 0;
  }
  close(error[0]);
  if (code) {
    if (pid > 0) waitpid(pid, nullptr, 0);
    close(out[0]);
    close(err[0]);
    return fail(Stage::Launch, fmt::format("cannot run '{}': {}", command.front(), std::strerror(code)));
  }
  RankProcess process;
  process.rank = rank;
  process.process = pid;
  for (auto [which, end] : {std::pair{0, out[0]}, {1, err[0]}}) {
    fcntl(end, F_SETFL, O_NONBLOCK);
    process.outputs[which].descriptor = end;
  }
  return process;
}

bool RankProcess::forward(int which) {
  Output &output = outputs[which];
  if (output.descriptor < 0) return false;
  char buffer[1 << 14];
  const ssize_t got = read(output.descriptor, buffer, sizeof(buffer));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    close(output.descriptor);
    output.descriptor = -1;
    emit(which, true);
    return false;
  }
  output.partial.append(buffer, static_cast<size_t>(got));
  emit(which, false);
  return true;
}

void RankProcess::drain(int which) {
  if (outputs[which].descriptor < 0) return;
  const int capacity = fcntl(outputs[which].descriptor, F_GETPIPE_SZ);
  for (int reads = std::max(capacity, 1 << 16) / (1 << 14) + 1; reads > 0 && forward(which);)
    --reads;
}

/// Writes the lines that are complete, or all there is, in one go.
void RankProcess::emit(int which, bool all) {
  std::string &partial = outputs[which].partial;
  std::string batch;
  size_t at = 0;
  while (at < partial.size()) {
    const size_t end = partial.find('\n', at), left = partial.size() - at;
    const bool whole = end != std::string::npos && end - at <= kLongestLine;
    if (!whole && left <= kLongestLine && !all) break;
    const std::string line = partial.substr(at, whole ? end - at : std::min(left, kLongestLine));
    fmt::format_to(std::back_inserter(batch), "[{}] {}\n", rank, line);
    at += line.size() + (whole ? 1 : 0);
    recent.push_back(line);
    if (recent.size() > kRecentLines) recent.pop_front();
  }
  partial.erase(0, at);
  if (batch.empty()) return;
  std::FILE *stream = which == 0 ? stdout : stderr;
  std::fwrite(batch.data(), 1, batch.size(), stream);
  std::fflush(stream);
}

bool RankProcess::reap() {
  if (!hasEnded && waitpid(process, &exitStatus, WNOHANG) == process) hasEnded = true;
  return hasEnded;
}

int RankProcess::exitCode() const {
  return WIFSIGNALED(exitStatus) ? 128 + WTERMSIG(exitStatus) : WEXITSTATUS(exitStatus);
}

std::string RankProcess::describeEnd() const {
  if (WIFSIGNALED(exitStatus))
    return fmt::format("was killed by signal {} ({})", WTERMSIG(exitStatus), strsignal(WTERMSIG(exitStatus)));
  return fmt::format("exited with code {}", WEXITSTATUS(exitStatus));
}

std::string RankProcess::lastLines() const { return recent.empty() ? "" : fmt::format("{}", fmt::join(recent, "\n")); }

void RankProcess::signal(int number) const { kill(-process, number); }

void RankProcess::closeOutputs() {
  for (int which : {0, 1})
    if (outputs[which].descriptor >= 0) {
      drain(which);
      emit(which, true);
      if (outputs[which].descriptor >= 0) close(outputs[which].descriptor);
      outputs[which].descriptor = -1;
    }
}

} // namespace tilewright::tool
