// Candidates for tests of the tuned store.
#pragma once

#include "TemporaryFolder.h"
#include "tilewright/tuning/ScheduleChoice.h"
#include <doctest/doctest.h>

namespace tilewright {

inline TuningEnvironment sampleEnvironment() {
  return {"sm_80", "Sample GPU", "CUDA 13.0", "NVRTC 13.0", "generator", std::string(kGpuColdPolicy)};
}

inline Target sampleTarget() { return *Target::parse("sm_80"); }

inline Problem sampleProblem(int64_t length = 1024) {
  Problem problem;
  problem.batch = 2;
  problem.headsQ = problem.headsKV = 8;
  problem.seqQ = problem.seqKV = length;
  return problem;
}

inline TunedCandidate sampleCandidate(int tileKV, double ms, int64_t length = 1024) {
  TunedCandidate c;
  c.environment = sampleEnvironment();
  c.environment.target = sampleTarget().canonicalText();
  c.problem = sampleProblem(length);
  c.schedule = Schedule::defaultFor(c.problem, sampleTarget(), KernelRole::Forward);
  c.schedule.tileKV = tileKV;
  c.ms = c.fastestMs = c.slowestMs = ms;
  c.repeats = 5;
  c.recorded = 1000;
  return c;
}

/// Warnings that were given.
struct Warnings {
  std::vector<std::string> texts;
  std::shared_ptr<Log> log = std::make_shared<Log>([this](LogLevel level, std::string_view text) {
    if (level == LogLevel::Warning) texts.emplace_back(text);
  });
};

inline std::shared_ptr<TunedStore> openStore(const std::string &folder, std::shared_ptr<Log> log) {
  auto store = TunedStore::openOrCreate(folder, std::move(log));
  REQUIRE_MESSAGE(store, store.error().text());
  return *store;
}

} // namespace tilewright
