// Ranks as real processes: each is forked, runs a function with its place in a job, and its exit code and last words
// come back to the test.
#pragma once

#include "tilewright/distributed/transport/JobEnvironment.h"
#include "tilewright/distributed/transport/Rendezvous.h"
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

struct RankResult {
  int exitCode = -1; ///< -signal if a signal ended it.
  std::string said;  ///< What it wrote.
};

class RankProcesses {
public:
  /// `timeout` begins to matter when the ranks are connected: starting them may take a busy machine long.
  /// Runs in the child; writes what it has to say with `say`, and returns its exit code.
  using Body =
      std::function<int(const tilewright::dist::JobEnvironment &, const std::function<void(const std::string &)> &say)>;

  RankProcesses(int worldSize, Body body, std::chrono::milliseconds timeout = std::chrono::seconds(20),
                std::function<void(tilewright::dist::JobEnvironment &)> change = {})
      : results(static_cast<size_t>(worldSize)) {
    auto port = tilewright::dist::openRendezvousPort("127.0.0.1", 0);
    for (int rank = 0; rank < worldSize; ++rank) {
      int ends[2];
      if (pipe(ends) != 0) std::abort();
      pid_t pid = fork();
      if (pid == 0) {
        alarm(300); // a hang is a failure, not a hang
        close(ends[0]);
        tilewright::dist::JobEnvironment job;
        job.rank = job.localRank = rank;
        job.worldSize = worldSize;
        job.masterPort = port->port;
        job.token = "the token of this test";
        job.joinTimeout = std::chrono::seconds(60);
        job.timeout = job.hangTimeout = timeout;
        if (rank == 0)
          job.rendezvousSocket = port->socket;
        else
          close(port->socket);
        if (change) change(job);
        int code = body(job, [&](const std::string &text) {
          if (write(ends[1], text.data(), text.size()) < 0) std::abort();
        });
        _exit(code);
      }
      close(ends[1]);
      pids.push_back(pid);
      pipes.push_back(ends[0]);
    }
    close(port->socket);
  }
  ~RankProcesses() {
    for (pid_t pid : pids)
      if (pid > 0) kill(pid, SIGKILL);
    wait();
  }

  pid_t pid(int rank) const { return pids[static_cast<size_t>(rank)]; }

  /// Blocks until the rank has said something; what it was.
  std::string hear(int rank) {
    char buffer[4096];
    ssize_t got = read(pipes[static_cast<size_t>(rank)], buffer, sizeof(buffer));
    return got > 0 ? std::string(buffer, static_cast<size_t>(got)) : std::string();
  }

  /// Until all have ended.
  const std::vector<RankResult> &wait() {
    for (size_t rank = 0; rank < pids.size(); ++rank) {
      if (pids[rank] < 0) continue;
      waitFor(rank);
    }
    return results;
  }
  const RankResult &waitFor(size_t rank) {
    for (std::string text; !(text = hear(static_cast<int>(rank))).empty();)
      results[rank].said += text;
    int status = 0;
    waitpid(pids[rank], &status, 0);
    results[rank].exitCode = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    close(pipes[rank]);
    pids[rank] = -1;
    return results[rank];
  }

private:
  std::vector<pid_t> pids;
  std::vector<int> pipes;
  std::vector<RankResult> results;
};
