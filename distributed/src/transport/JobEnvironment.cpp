#include "tilewright/distributed/transport/JobEnvironment.h"
#include <arpa/inet.h>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>

namespace tilewright::dist {
namespace {

struct RankNames {
  const char *rank, *worldSize, *localRank;
};
constexpr RankNames kSources[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

Status readInt(const JobEnvironment::Lookup &lookup, const char *name, int64_t low, int64_t high, int &value) {
  std::optional<std::string> text = lookup(name);
  if (!text || text->empty()) return {};
  int64_t number = 0;
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size() || number < low || number > high)
    return fail(Stage::Communicate,
                fmt::format("environment: {}: expected an integer from {} to {}, found '{}'", name, low, high, *text));
  value = static_cast<int>(number);
  return {};
}

Status readSeconds(const JobEnvironment::Lookup &lookup, const char *name, std::chrono::milliseconds &value) {
  std::optional<std::string> text = lookup(name);
  if (!text || text->empty()) return {};
  char *end = nullptr;
  const double seconds = std::strtod(text->c_str(), &end);
  if (*end || !(seconds >= 0.1 && seconds <= 1e6))
    return fail(Stage::Communicate,
                fmt::format("environment: {}: expected seconds, at least 0.1, found '{}'", name, *text));
  value = std::chrono::milliseconds(std::llround(seconds * 1000));
  return {};
}

} // namespace

Expected<JobEnvironment> JobEnvironment::parse(const Lookup &lookup) {
  JobEnvironment job;
  constexpr int64_t kMostRanks = 1 << 16;
  for (const RankNames &names : kSources) {
    std::optional<std::string> rank = lookup(names.rank), size = lookup(names.worldSize);
    if (!rank && !size) continue;
    if (!rank || !size)
      return fail(Stage::Communicate,
                  fmt::format("environment: {} is set, {} is not", rank ? names.rank : names.worldSize,
                              rank ? names.worldSize : names.rank));
    if (Status s = readInt(lookup, names.worldSize, 1, kMostRanks, job.worldSize); !s) return propagate(s);
    if (Status s = readInt(lookup, names.rank, 0, job.worldSize - 1, job.rank); !s) return propagate(s);
    job.localRank = job.rank;
    if (Status s = readInt(lookup, names.localRank, 0, job.worldSize - 1, job.localRank); !s) return propagate(s);
    break;
  }
  if (auto address = lookup("MASTER_ADDR"); address && !address->empty()) job.masterAddress = *address;
  if (Status s = readInt(lookup, "MASTER_PORT", 1, 65535, job.masterPort); !s) return propagate(s);
  if (Status s = readInt(lookup, "TILEWRIGHT_RENDEZVOUS_FD", 3, 1 << 20, job.rendezvousSocket); !s) return propagate(s);
  job.token = lookup("TILEWRIGHT_JOB_TOKEN").value_or("");
  if (auto address = lookup("TILEWRIGHT_LISTEN_ADDRESS"); address && !address->empty()) job.listenAddress = *address;
  in_addr ignored4;
  in6_addr ignored6;
  if (inet_pton(AF_INET, job.listenAddress.c_str(), &ignored4) != 1 &&
      inet_pton(AF_INET6, job.listenAddress.c_str(), &ignored6) != 1)
    return fail(Stage::Communicate,
                fmt::format("environment: TILEWRIGHT_LISTEN_ADDRESS: expected a numeric IP address of this "
                            "host, found '{}'",
                            job.listenAddress));
  if (Status s = readSeconds(lookup, "TILEWRIGHT_NETWORK_TIMEOUT", job.timeout); !s) return propagate(s);
  if (Status s = readSeconds(lookup, "TILEWRIGHT_HANG_TIMEOUT", job.hangTimeout); !s) return propagate(s);
  if (job.worldSize == 1) return job;
  if (job.token.empty())
    return fail(Stage::Communicate,
                "environment: TILEWRIGHT_JOB_TOKEN is not set: ranks could not tell their peers from strangers",
                "start the ranks with `tilewright launch`, or give all of them the same secret");
  if (job.masterPort == 0)
    return fail(Stage::Communicate, "environment: MASTER_PORT is not set: ranks could not find rank 0",
                "start the ranks with `tilewright launch`, or give all of them the same free port");
  return job;
}

Expected<JobEnvironment> JobEnvironment::ofProcess() {
  return parse([](const char *name) -> std::optional<std::string> {
    const char *value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

} // namespace tilewright::dist
