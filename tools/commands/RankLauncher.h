// Starts the ranks of a job on this machine, passes their output and signals on, and leaves none behind.
#pragma once

#include "tilewright/Error.h"
#include <string>
#include <vector>

namespace tilewright::tool {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command;
  std::string address = "127.0.0.1"; ///< Where rank 0 listens.
  int port = 0;                      ///< 0: any free one.
  double graceSeconds = 5;           ///< From SIGTERM to SIGKILL.
};

/// How the first rank that did not succeed ended.
struct LaunchResult {
  int exitCode = 0;    ///< Of the launcher: the failed rank's, 128 + signal if a signal ended it, 0 if all succeeded.
  std::string failure; ///< "rank 1 exited with code 7; ..." with its last lines; empty if all succeeded.
};

/// Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and a random TILEWRIGHT_JOB_TOKEN; rank 0
/// also the listening socket, so that nobody can take the port. Lines of output come with "[rank] " before them. When a
/// rank fails, the others get a second to report their errors, then SIGTERM, then SIGKILL; SIGINT, SIGTERM and SIGHUP
/// go to all ranks. Should the launcher itself be killed, the ranks are too. Errors: a command or port that cannot be
/// had; nothing is running then.
Expected<LaunchResult> launchRanks(const LaunchOptions &options);

} // namespace tilewright::tool
