#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "../src/tuning/ProblemRecord.h"
#include "TunedSamples.h"
#include <nlohmann/json.hpp>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

using namespace tilewright;

namespace {

KernelPlan planOf(const Problem &problem, KernelRole role = KernelRole::Forward) {
  return {problem, Schedule::defaultFor(problem, sampleTarget(), role), sampleTarget(), role};
}

std::vector<Problem> problemsIn(const std::string &path) {
  std::istringstream lines(readFile(path));
  std::vector<Problem> problems;
  for (std::string line; std::getline(lines, line);) {
    auto problem = problemFromJson(nlohmann::json::parse(line, nullptr, false));
    REQUIRE(problem);
    problems.push_back(*problem);
  }
  return problems;
}

} // namespace

TEST_CASE("each problem is written once, by one process or many") {
  TemporaryFolder folder;
  const std::string path = folder.path + "/problems.jsonl";
  std::vector<pid_t> children;
  for (int process = 0; process < 6; ++process) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ProblemRecord record(path, std::make_shared<Log>());
      for (int turn = 0; turn < 3; ++turn)
        for (int length = 1; length <= 10; ++length)
          record.add(planOf(sampleProblem(length)));
      _exit(0);
    }
    children.push_back(child);
  }
  for (pid_t child : children)
    waitpid(child, nullptr, 0);
  CHECK(problemsIn(path).size() == 10);
}

TEST_CASE("a line that begins like another is no duplicate, and kernels that accompany others are left out") {
  TemporaryFolder folder;
  const std::string path = folder.path + "/problems.jsonl";
  ProblemRecord record(path, std::make_shared<Log>());
  Problem backward = sampleProblem();
  backward.direction = Direction::Backward;
  record.add(planOf(backward, KernelRole::Delta));
  CHECK(!std::filesystem::exists(path));
  record.add(planOf(backward, KernelRole::DQ));
  record.add(planOf(backward, KernelRole::DKV));
  record.add(planOf(sampleProblem()));
  CHECK(problemsIn(path) == std::vector{backward, sampleProblem()});
}

TEST_CASE("a file that cannot be written is one warning") {
  Warnings warnings;
  ProblemRecord record("/nowhere/at/all", warnings.log);
  record.add(planOf(sampleProblem(1)));
  record.add(planOf(sampleProblem(2)));
  CHECK(warnings.texts.size() == 1);
}
