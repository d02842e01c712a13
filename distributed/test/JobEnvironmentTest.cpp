#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/distributed/transport/JobEnvironment.h"
#include <doctest/doctest.h>
#include <map>

using namespace tilewright;
using namespace tilewright::dist;

namespace {

Expected<JobEnvironment> parse(std::map<std::string, std::string> variables) {
  return JobEnvironment::parse([&](const char *name) -> std::optional<std::string> {
    auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

void refused(std::map<std::string, std::string> variables, std::initializer_list<std::string_view> parts) {
  auto job = parse(std::move(variables));
  REQUIRE_FALSE(job);
  for (std::string_view part : parts)
    CHECK_MESSAGE(job.error().text().find(part) != std::string::npos, job.error().text());
}

} // namespace

TEST_CASE("one process alone needs no variables") {
  auto job = parse({});
  REQUIRE(job);
  CHECK(job->worldSize == 1);
  CHECK(job->rank == 0);
  CHECK(job->listenAddress == "127.0.0.1");
}

TEST_CASE("RANK and its like come before Open MPI's and SLURM's") {
  std::map<std::string, std::string> variables = {
      {"MASTER_PORT", "4000"},       {"TILEWRIGHT_JOB_TOKEN", "t"},         {"OMPI_COMM_WORLD_RANK", "2"},
      {"OMPI_COMM_WORLD_SIZE", "5"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},   {"SLURM_PROCID", "3"},
      {"SLURM_NTASKS", "4"},         {"TILEWRIGHT_NETWORK_TIMEOUT", "2.5"}, {"TILEWRIGHT_HANG_TIMEOUT", "60"}};
  auto job = parse(variables);
  REQUIRE(job);
  CHECK(job->rank == 2);
  CHECK(job->worldSize == 5);
  CHECK(job->localRank == 1);
  CHECK(job->timeout == std::chrono::milliseconds(2500));
  CHECK(job->hangTimeout == std::chrono::seconds(60));
  variables["RANK"] = "0";
  variables["WORLD_SIZE"] = "3";
  job = parse(variables);
  REQUIRE(job);
  CHECK(job->rank == 0);
  CHECK(job->worldSize == 3);
  CHECK(job->localRank == 0);
  for (const char *name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})
    variables.erase(name);
  CHECK(parse(variables)->rank == 3);
}

TEST_CASE("bad variables are named with their value and what is accepted") {
  const std::map<std::string, std::string> two = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "4000"}, {"TILEWRIGHT_JOB_TOKEN", "t"}};
  auto with = [&](const char *name, const char *value) {
    auto changed = two;
    if (value)
      changed[name] = value;
    else
      changed.erase(name);
    return changed;
  };
  CHECK(parse(two));
  refused(with("RANK", "2"), {"RANK", "from 0 to 1", "'2'"});
  refused(with("RANK", "one"), {"RANK", "'one'"});
  refused(with("RANK", nullptr), {"WORLD_SIZE is set, RANK is not"});
  refused(with("WORLD_SIZE", "0"), {"WORLD_SIZE", "'0'"});
  refused(with("MASTER_PORT", "70000"), {"MASTER_PORT", "65535"});
  refused(with("MASTER_PORT", nullptr), {"MASTER_PORT is not set", "tilewright launch"});
  refused(with("TILEWRIGHT_JOB_TOKEN", nullptr), {"TILEWRIGHT_JOB_TOKEN is not set"});
  refused(with("TILEWRIGHT_LISTEN_ADDRESS", "localhost"), {"numeric IP address", "'localhost'"});
  refused(with("TILEWRIGHT_NETWORK_TIMEOUT", "0"), {"at least 0.1", "'0'"});
  refused(with("TILEWRIGHT_HANG_TIMEOUT", "long"), {"TILEWRIGHT_HANG_TIMEOUT", "'long'"});
}
