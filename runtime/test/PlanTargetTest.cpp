#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/plan/Target.h"
#include <doctest/doctest.h>

using namespace tilewright;

namespace {

std::string nameFor(int major, int minor) {
  auto target = Target::forComputeCapability(major, minor);
  return target ? target->name : target.error().text();
}

} // namespace

TEST_CASE("targets parse by name, with the limits of the programming guide") {
  for (const Target &target : Target::cudaTargets()) {
    auto parsed = Target::parse(target.name);
    REQUIRE(parsed);
    CHECK((*parsed == target));
    CHECK_FALSE(parsed->isCpu());
    CHECK(parsed->sharedBytesPerBlock + 1024 == parsed->sharedBytesPerSM);
    CHECK(parsed->canonicalText() == target.name);
  }
  CHECK(Target::parse("sm_80")->sharedBytesPerBlock == 166912);
  CHECK(Target::parse("sm_86")->sharedBytesPerBlock == 101376);
  CHECK(Target::parse("sm_89")->sharedBytesPerBlock == 101376);
  CHECK(Target::parse("sm_90a")->sharedBytesPerBlock == 232448);
  CHECK(Target::parse("sm_90")->computeCapability == 90);
  CHECK(Target::parse("sm_100")->sharedBytesPerBlock == 232448);
  CHECK(Target::parse("sm_120")->sharedBytesPerBlock == 101376);
}

TEST_CASE("CUDA targets are listed oldest first") {
  const auto &targets = Target::cudaTargets();
  for (size_t i = 1; i < targets.size(); ++i)
    CHECK(targets[i - 1].computeCapability <= targets[i].computeCapability);
}

TEST_CASE("unknown targets list the known ones") {
  for (const char *name : {"sm_70", "sm_900", "gpu", "", "CPU"}) {
    auto target = Target::parse(name);
    REQUIRE_FALSE(target);
    CHECK(target.error().message.find(name) != std::string::npos);
    CHECK(target.error().hint.find("cpu, sm_80, sm_86") != std::string::npos);
  }
}

TEST_CASE("devices get the best target they can run") {
  CHECK(nameFor(8, 0) == "sm_80");
  CHECK(nameFor(8, 6) == "sm_86");
  CHECK(nameFor(8, 7) == "sm_87");
  CHECK(nameFor(8, 9) == "sm_89");
  CHECK(nameFor(9, 0) == "sm_90a");
  CHECK(nameFor(10, 0) == "sm_100");
  CHECK(nameFor(10, 3) == "sm_100");
  CHECK(nameFor(12, 0) == "sm_120");
  CHECK(nameFor(12, 1) == "sm_120");
  CHECK(nameFor(13, 0) == "sm_120");
  CHECK(nameFor(7, 5).find("7.5 is too old") != std::string::npos);
}

TEST_CASE("the host's CPU target has one of the micro-architecture levels") {
  Target host = Target::hostCpu();
  CHECK(host.isCpu());
  CHECK(host.name == "cpu");
  CHECK((*Target::parse("cpu") == host));
  CHECK(host.canonicalText() == "cpu " + host.cpuLevel);
  CHECK(host.threads >= 1);
  Target wider = host;
  wider.threads = 1000; // code is the same for any number of them
  CHECK(wider.canonicalText() == host.canonicalText());
  CHECK((host.vectorBits == 128 || host.vectorBits == 256 || host.vectorBits == 512));
  auto oldest = Target::parse("x86-64-v2");
  REQUIRE(oldest);
  CHECK(oldest->vectorBits == 128);
  CHECK(oldest->name == "cpu");
  // A level above the host's is refused rather than left to die of an illegal instruction.
  for (auto [level, bits] : {std::pair{"x86-64-v3", 256}, std::pair{"x86-64-v4", 512}})
    CHECK(Target::parse(level).has_value() == (host.vectorBits >= bits));
}
