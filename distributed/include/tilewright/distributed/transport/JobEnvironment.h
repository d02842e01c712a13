// A process's place in a distributed job, from the usual environment variables.
#pragma once

#include "tilewright/Error.h"
#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace tilewright::dist {

struct JobEnvironment {
  int rank = 0, worldSize = 1;
  int localRank = 0; ///< Among the ranks of this host.
  std::string masterAddress = "127.0.0.1";
  int masterPort = 0; ///< 0: not given.
  std::string token;  ///< The secret that peers must prove to know.
  /// The numeric address of this host that peers connect to. Loopback unless TILEWRIGHT_LISTEN_ADDRESS names another.
  std::string listenAddress = "127.0.0.1";
  /// A listening socket inherited from the launcher, so that nobody can take the port meanwhile; -1 if there is none.
  /// It stays open for this process's next meeting. What is no socket that listens on masterPort is ignored.
  int rendezvousSocket = -1;
  /// How long a rank waits for another before it asks all of them whether they live; who does not answer is lost.
  std::chrono::milliseconds timeout{30000};
  /// How long it waits for ranks that do answer: they may write a checkpoint, or have more data. At least `timeout`.
  std::chrono::milliseconds hangTimeout{1800000};
  /// Of the rendezvous and the first connections; `timeout` if not given.
  std::optional<std::chrono::milliseconds> joinTimeout;
  std::chrono::milliseconds joinLimit() const { return joinTimeout.value_or(timeout); }

  using Lookup = std::function<std::optional<std::string>(const char *name)>;

  /// RANK, WORLD_SIZE, LOCAL_RANK; without them Open MPI's (OMPI_COMM_WORLD_RANK ...) or SLURM's (SLURM_PROCID ...);
  /// without those one rank alone. MASTER_ADDR, MASTER_PORT, TILEWRIGHT_JOB_TOKEN, TILEWRIGHT_LISTEN_ADDRESS,
  /// TILEWRIGHT_RENDEZVOUS_FD, TILEWRIGHT_NETWORK_TIMEOUT and TILEWRIGHT_HANG_TIMEOUT (seconds). Errors name the
  /// variable, its value and what is accepted; with more than one rank, a token and a port are needed.
  static Expected<JobEnvironment> parse(const Lookup &lookup);
  static Expected<JobEnvironment> ofProcess();
};

} // namespace tilewright::dist
