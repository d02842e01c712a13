#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "../TuneReport.h"
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace tilewright;
using namespace tilewright::tune;

namespace {

TunedCandidate rowOf(const KernelReport &kernel, int tileKV, double ms, bool confirmed = true) {
  TunedCandidate row;
  row.problem = kernel.problem;
  row.role = kernel.role;
  row.schedule = kernel.byDefault;
  row.schedule.tileKV = tileKV;
  row.ms = row.fastestMs = row.slowestMs = ms;
  row.confirmed = confirmed;
  row.clockMhz = 1980;
  return row;
}

KernelReport kernelOf(KernelRole role, double defaultMs, double otherMs) {
  KernelReport kernel;
  kernel.problem.direction = role == KernelRole::Forward ? Direction::Forward : Direction::Backward;
  kernel.role = role;
  kernel.byDefault.tileKV = 64;
  for (int tileKV : {64, 32, 128, 16})
    kernel.list.kept.push_back({rowOf(kernel, tileKV, 1).schedule, 1});
  kernel.list.considered = 10;
  kernel.list.pruned[PruneReason::Registers] = 6;
  kernel.rows = {rowOf(kernel, 64, defaultMs), rowOf(kernel, 32, otherMs), rowOf(kernel, 128, 0, false)};
  kernel.rows[2].outcome = TuningOutcome::Crashed;
  kernel.rows[2].detail = "killed by <signal> 11 & more";
  kernel.measured = 3;
  return kernel;
}

TuneReport sampleReport() {
  TuneReport report;
  report.target = *Target::parse("sm_90a");
  report.environment = {"sm_90a", "Sample <GPU>", "CUDA 13.0", "NVRTC 13.0", "generator", "policy"};
  ProblemReport problem;
  problem.problem.direction = Direction::Backward;
  problem.visiblePairs = 1e6;
  problem.kernels = {kernelOf(KernelRole::Forward, 1.2, 1), kernelOf(KernelRole::DQ, 1, 0.995),
                     kernelOf(KernelRole::DKV, 2, 1), kernelOf(KernelRole::Fused, 1.9, 1.8)};
  report.problems = {problem};
  return report;
}

} // namespace

TEST_CASE("winners, ties, gains and the gradients' strategy") {
  const TuneReport report = sampleReport();
  const ProblemReport &problem = report.problems.front();
  CHECK(problem.kernels[0].gain() == doctest::Approx(1.2));
  CHECK((problem.kernels[1].winner()->schedule == problem.kernels[1].byDefault)); // a tie
  CHECK(problem.kernels[1].gain() == 1);
  CHECK(*problem.tunedMs(Direction::Forward) == doctest::Approx(1));
  CHECK((*problem.strategy() == Backward::Fused));
  CHECK(*problem.tunedMs(Direction::Backward) == doctest::Approx(1.8));
  CHECK(problem.kernels[0].left() == 1);
  CHECK(report.hasWinners());
}

TEST_CASE("a kernel without any right candidate has no winner, and the report says so") {
  TuneReport report = sampleReport();
  for (TunedCandidate &row : report.problems[0].kernels[2].rows)
    row.outcome = TuningOutcome::WrongResult;
  CHECK(!report.hasWinners());
  CHECK(toJson(report)["ok"] == false);
  CHECK(toText(report).find("no winner") != std::string::npos);
  report.problems[0].failure = "no memory";
  CHECK(toText(report).find("no memory") != std::string::npos);
}

TEST_CASE("the forms hold every count and every failure, and pages escape what they show") {
  const TuneReport report = sampleReport();
  const nlohmann::json kernel = toJson(report)["problems"][0]["kernels"][0];
  CHECK(kernel["pruned"]["registers"] == 6);
  CHECK(kernel["pruned"]["form"] == 0);
  CHECK(kernel["outcomes"] == nlohmann::json({{"ok", 2}, {"crashed", 1}}));
  CHECK(kernel["failures"].size() == 1);
  CHECK(kernel["left"] == 1);
  const std::string text = toText(report), page = toHtml(report);
  CHECK(text.find("crashed: killed by <signal> 11 & more") != std::string::npos);
  CHECK(text.find("1.200x") != std::string::npos);
  CHECK(text.find("tile_kv=32") != std::string::npos);
  CHECK(page.find("killed by &lt;signal&gt; 11 &amp; more") != std::string::npos);
  CHECK(page.find("Sample <GPU>") == std::string::npos);
  CHECK(page.find("http") == std::string::npos); // loads nothing
  CHECK(page.find("winnerframe\"") != std::string::npos);
}

TEST_CASE("problems and differences in words") {
  Problem p;
  p.batch = 2;
  p.headsQ = 16;
  p.headsKV = 4;
  p.seqQ = 1;
  p.seqKV = 4096;
  p.dimQK = 192;
  p.dimV = 128;
  p.causal = true;
  p.window.left = 100;
  CHECK(problemText(p) == "b2 h16:4 q1 kv4096 d192:128 bf16 causal window 100,-1");
  Schedule a, b;
  b.tileKV = 32;
  b.order = Order::LongestFirst;
  CHECK(differenceText(a, a) == "the default");
  CHECK(differenceText(b, a) == "tile_kv=32 order=longest_first");
}
