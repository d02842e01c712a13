// How ranks find each other: each brings a text, all get everyone's. Rank 0 listens; nobody learns or tells anything
// before both sides have proved that they know the job's token.
#pragma once

#include "tilewright/distributed/transport/JobEnvironment.h"
#include <vector>

namespace tilewright::dist {

struct Meeting {
  std::string runId;              ///< Random, the same on all ranks.
  std::vector<std::string> texts; ///< By rank.
};

/// Called by every rank with its own text (at most 16 MiB). Errors, on all ranks within the job's timeout: a wrong
/// token, a port that is taken, two processes with one rank, another world size, ranks that did not come (named).
Expected<Meeting> meet(const JobEnvironment &job, const std::string &text);

/// Bound and listening, for a launcher to hand down to rank 0 (TILEWRIGHT_RENDEZVOUS_FD), with its port.
struct ListeningPort {
  int socket = -1; ///< The caller's to close.
  int port = 0;
};
Expected<ListeningPort> openRendezvousPort(const std::string &address, int port);

} // namespace tilewright::dist
