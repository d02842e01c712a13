#include "RankLauncher.h"
#include "RankProcess.h"
#include "tilewright/distributed/transport/Rendezvous.h"
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tilewright::tool {
namespace {

using Clock = std::chrono::steady_clock;
/// What the others have to report the failure on their own, before they are asked to end.
constexpr std::chrono::seconds kReportTime{1};

/// A process that outlives a killed launcher just long enough to end the ranks' process groups.
class Guardian {
public:
  ~Guardian() {
    if (pid < 0) return;
    const pid_t none = 0; // "all is well": it ends without killing
    (void)!write(pipeEnd, &none, sizeof(none));
    close(pipeEnd);
    waitpid(pid, nullptr, 0);
  }
  void start() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    pid = fork();
    if (pid == 0) {
      close(ends[1]);
      guard(ends[0]);
    }
    close(ends[0]);
    pipeEnd = ends[1];
  }
  void watch(pid_t group) { (void)!write(pipeEnd, &group, sizeof(group)); }

private:
  [[noreturn]] static void guard(int end) {
    setsid();
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    const int null = open("/dev/null", O_RDWR);
    for (int standard : {0, 1, 2})
      dup2(null, standard);
    pid_t groups[4096];
    size_t count = 0;
    for (pid_t group; read(end, &group, sizeof(group)) == sizeof(group) && count < 4096;) {
      if (group == 0) _exit(0);
      groups[count++] = group;
    }
    for (size_t i = 0; i < count; ++i)
      kill(-groups[i], SIGKILL);
    _exit(0);
  }

  pid_t pid = -1;
  int pipeEnd = -1;
};

class Launcher {
public:
  explicit Launcher(const LaunchOptions &options) : options(options) {}
  ~Launcher() {
    for (const RankProcess &rank : ranks)
      rank.signal(SIGKILL);
    for (RankProcess &rank : ranks)
      if (!rank.ended()) waitpid(rank.pid(), nullptr, 0);
    if (port.socket >= 0) close(port.socket);
    if (signals >= 0) close(signals);
    sigprocmask(SIG_SETMASK, &before, nullptr);
  }

  Expected<LaunchResult> run() {
    blockSignals();
    if (Status status = startAll(); !status) return propagate(status);
    while (!reapAll())
      turn();
    // What the ranks started and left behind goes too; then there is nobody left to write.
    for (const RankProcess &rank : ranks)
      rank.signal(SIGKILL);
    for (RankProcess &rank : ranks)
      rank.closeOutputs();
    return result;
  }

private:
  void blockSignals() {
    sigset_t mask;
    sigemptyset(&mask);
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD})
      sigaddset(&mask, number);
    sigprocmask(SIG_BLOCK, &mask, &before);
    signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  Status startAll() {
    guardian.start(); // before the port is open: a copy of its socket would keep it so
    Expected<dist::ListeningPort> opened = dist::openRendezvousPort(options.address, options.port);
    if (!opened) return propagate(opened);
    port = *opened;
    unsigned char random[24];
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
      return fail(Stage::Launch, "launch: no random bytes for the job's token");
    std::string token;
    for (unsigned char byte : random)
      token += fmt::format("{:02x}", byte);
    for (int rank = 0; rank < options.ranks; ++rank) {
      RankProcess::Variables variables = {{"RANK", std::to_string(rank)},
                                          {"WORLD_SIZE", std::to_string(options.ranks)},
                                          {"LOCAL_RANK", std::to_string(rank)},
                                          {"MASTER_ADDR", options.address},
                                          {"MASTER_PORT", std::to_string(port.port)},
                                          {"TILEWRIGHT_JOB_TOKEN", token},
                                          {"TILEWRIGHT_RENDEZVOUS_FD", rank == 0 ? std::to_string(port.socket) : ""}};
      Expected<RankProcess> process =
          RankProcess::start(rank, options.command, variables, rank == 0 ? port.socket : -1);
      if (!process) return propagate(process);
      guardian.watch(process->pid());
      ranks.push_back(std::move(*process));
    }
    close(port.socket); // rank 0 has it now: when it ends, connecting fails at once
    port.socket = -1;
    return {};
  }

  /// Notices who has ended; whether all have.
  bool reapAll() {
    bool all = true;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (!ranks[i].ended() && ranks[i].reap() && ranks[i].failed()) rankFailed(i);
      all &= ranks[i].ended();
    }
    return all;
  }

  /// One wait for output, signals or the time of the next measure.
  void turn() {
    std::vector<pollfd> entries = {{signals, POLLIN, 0}};
    for (const RankProcess &rank : ranks)
      for (int which : {0, 1})
        entries.push_back({rank.output(which), POLLIN, 0}); // -1 is ignored
    int wait = 1000;
    if (ending)
      wait = std::clamp<int>(
          static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(nextMeasure - Clock::now()).count()), 0, 1000);
    poll(entries.data(), entries.size(), wait);
    for (RankProcess &rank : ranks)
      for (int which : {0, 1})
        rank.forward(which);
    signalfd_siginfo info;
    while (read(signals, &info, sizeof(info)) == sizeof(info))
      if (info.ssi_signo != SIGCHLD) interrupted(static_cast<int>(info.ssi_signo));
    if (ending && Clock::now() >= nextMeasure) escalate();
  }

  void rankFailed(size_t index) {
    RankProcess &rank = ranks[index];
    for (int which : {0, 1})
      rank.drain(which);
    if (result.exitCode == 0) {
      result.exitCode = rank.exitCode();
      const std::string lines = rank.lastLines();
      result.failure = fmt::format("rank {} of {} {}, the first to fail{}", index, ranks.size(), rank.describeEnd(),
                                   lines.empty() ? "; it wrote nothing" : "; its last lines:\n" + lines);
    }
    if (ending) return;
    ending = true;
    nextSignal = SIGTERM;
    nextMeasure = Clock::now() + kReportTime;
  }

  void interrupted(int number) {
    const bool again = ending && nextSignal == SIGKILL;
    if (result.exitCode == 0) {
      result.exitCode = 128 + number;
      result.failure = fmt::format("interrupted by signal {} ({})", number, strsignal(number));
    }
    signalAll(again ? SIGKILL : number);
    ending = true;
    nextSignal = SIGKILL;
    nextMeasure = Clock::now() + grace();
  }

  void escalate() {
    signalAll(nextSignal);
    nextSignal = SIGKILL;
    nextMeasure = Clock::now() + grace();
  }

  void signalAll(int number) {
    for (const RankProcess &rank : ranks)
      if (!rank.ended()) rank.signal(number);
  }
  std::chrono::milliseconds grace() const {
    return std::chrono::milliseconds(static_cast<int64_t>(options.graceSeconds * 1000));
  }

  const LaunchOptions &options;
  Guardian guardian;
  std::vector<RankProcess> ranks;
  dist::ListeningPort port;
  sigset_t before{};
  int signals = -1;
  bool ending = false;
  int nextSignal = SIGTERM;
  Clock::time_point nextMeasure;
  LaunchResult result;
};

} // namespace

Expected<LaunchResult> launchRanks(const LaunchOptions &options) { return Launcher(options).run(); }

} // namespace tilewright::tool
