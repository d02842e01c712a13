#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "../Candidates.h"
#include "tilewright/plan/KernelPlan.h"
#include <cmath>
#include <doctest/doctest.h>
#include <set>

using namespace tilewright;
using namespace tilewright::tune;

namespace {

Problem problemOf(int64_t dimQK, int64_t dimV, DType dtype = DType::BF16, int64_t length = 1000) {
  Problem problem;
  problem.batch = 2;
  problem.headsQ = problem.headsKV = 4;
  problem.dimQK = dimQK;
  problem.dimV = dimV;
  problem.dtype = dtype;
  problem.seqQ = problem.seqKV = length;
  problem.causal = true;
  problem.direction = Direction::Backward;
  return problem;
}

VisitCount visitsOf(const Problem &problem) {
  return [problem](int tileQ, int tileKV) {
    return 8 * std::ceil(static_cast<double>(problem.seqQ) / tileQ) *
           std::ceil(static_cast<double>(problem.seqKV) / tileKV);
  };
}

CandidateOptions optionsOf(const char *ranges = "", const char *overrides = "") {
  CandidateOptions options;
  auto parsed = RangeOverrides::parse(ranges);
  REQUIRE_MESSAGE(parsed, parsed.error().text());
  options.ranges = *parsed;
  auto fields = ScheduleOverrides::parse(overrides);
  REQUIRE_MESSAGE(fields, fields.error().text());
  options.overrides = *fields;
  return options;
}

CandidateList listOf(const Problem &problem, const Target &target, KernelRole role, const CandidateOptions &options) {
  auto list = candidatesOf(problem, target, role, options, visitsOf(problem));
  REQUIRE_MESSAGE(list, list.error().text());
  return *list;
}

std::set<std::string> textsOf(const CandidateList &list) {
  std::set<std::string> texts;
  for (const Candidate &candidate : list.kept)
    texts.insert(candidate.schedule.canonicalText());
  return texts;
}

size_t prunedIn(const CandidateList &list) {
  size_t sum = 0;
  for (const auto &[reason, count] : list.pruned)
    sum += count;
  return sum;
}

constexpr KernelRole kRoles[] = {KernelRole::Forward, KernelRole::DQ, KernelRole::DKV, KernelRole::Fused};

} // namespace

TEST_CASE("no candidate is impossible, the default is among them, and the counts add up") {
  size_t lists = 0;
  for (const char *name : {"cpu", "sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"})
    for (DType dtype : {DType::BF16, DType::F32})
      for (auto [dimQK, dimV] : {std::pair{64, 64}, {72, 40}, {128, 128}, {192, 128}, {256, 256}})
        for (int64_t length : {1, 50, 4096})
          for (KernelRole role : kRoles) {
            const Target target = *Target::parse(name);
            Problem problem = problemOf(dimQK, dimV, dtype, length);
            if (role == KernelRole::Forward) problem.direction = Direction::Forward;
            auto byDefault = KernelPlan::make(problem, target, role);
            auto list = candidatesOf(problem, target, role, optionsOf(), visitsOf(problem));
            CHECK(list.has_value() == byDefault.has_value());
            if (!list) continue;
            ++lists;
            CAPTURE(name);
            CAPTURE(dimQK);
            CHECK((list->kept.front().schedule == byDefault->schedule));
            CHECK(list->kept.size() <= optionsOf().most);
            CHECK(list->considered == list->kept.size() + prunedIn(*list));
            CHECK(textsOf(*list).size() == list->kept.size());
            for (const Candidate &candidate : list->kept) {
              Status status = candidate.schedule.validate(problem, target, role);
              REQUIRE_MESSAGE(status, status.error().text());
              CHECK(candidate.estimate >= 1);
            }
          }
  CHECK(lists > 200);
}

TEST_CASE("what limits leave out is counted under the limit") {
  const CandidateList wide = listOf(problemOf(256, 256), *Target::parse("sm_86"), KernelRole::DKV, optionsOf());
  CHECK(wide.pruned.at(PruneReason::SharedMemory) > 100);
  CHECK(wide.pruned.at(PruneReason::Registers) > 0);
  CHECK(wide.pruned.at(PruneReason::Form) > 100);
  Problem forward = problemOf(128, 128);
  forward.direction = Direction::Forward;
  const CandidateList hopper = listOf(forward, *Target::parse("sm_90a"), KernelRole::Forward, optionsOf());
  CHECK(hopper.pruned.at(PruneReason::SharedMemory) > 0);
  CHECK(hopper.pruned.at(PruneReason::Registers) > 0);
  const CandidateList cpu = listOf(forward, *Target::parse("cpu"), KernelRole::Forward, optionsOf());
  CHECK(cpu.pruned.count(PruneReason::SharedMemory) == 0);
}

TEST_CASE("a cost model that rules nothing out keeps every valid combination") {
  CandidateOptions options = optionsOf();
  options.slowest = 1e9;
  options.most = 100000;
  for (KernelRole role : kRoles) {
    Problem problem = problemOf(64, 64);
    const CandidateList list = listOf(problem, *Target::parse("sm_80"), role, options);
    CHECK(list.pruned.count(PruneReason::CostModel) == 0);
    CHECK(list.kept.size() > optionsOf().most);
  }
}

TEST_CASE("a wider range only adds candidates where there is room for all") {
  CandidateOptions narrow = optionsOf("tile_q=32|64,tile_kv=32|64"), wide = optionsOf("tile_q=32|64,tile_kv=16:96");
  narrow.slowest = wide.slowest = 1e9;
  const Problem problem = problemOf(64, 64);
  const Target cpu = *Target::parse("cpu");
  const auto few = textsOf(listOf(problem, cpu, KernelRole::DQ, narrow)),
             many = textsOf(listOf(problem, cpu, KernelRole::DQ, wide));
  CHECK(few.size() < many.size());
  for (const std::string &text : few)
    CHECK(many.contains(text));
  const auto other = textsOf(listOf(problem, cpu, KernelRole::DKV, optionsOf("dq.tile_q=16")));
  CHECK(other == textsOf(listOf(problem, cpu, KernelRole::DKV, optionsOf())));
}

TEST_CASE("fields that are set are the same in every candidate") {
  const CandidateList list = listOf(problemOf(64, 64), *Target::parse("sm_80"), KernelRole::DKV,
                                    optionsOf("", "stages=1,dkv.tile_kv=64,dq.tile_q=16"));
  CHECK(list.kept.size() > 3);
  for (const Candidate &candidate : list.kept) {
    CHECK(candidate.schedule.stages == 1);
    CHECK(candidate.schedule.tileKV == 64);
  }
}

TEST_CASE("the keys of few queries are split where threads would idle") {
  Problem decode = problemOf(64, 64);
  decode.direction = Direction::Forward;
  decode.batch = 1;
  decode.seqQ = 1;
  decode.seqKV = 8192;
  Target target = *Target::parse("cpu");
  target.threads = 16;
  bool anySplit = false;
  for (const Candidate &candidate : listOf(decode, target, KernelRole::Forward, optionsOf()).kept)
    anySplit |= candidate.schedule.splitKV > 1;
  CHECK(anySplit);
}

TEST_CASE("Hopper: few queries of grouped heads are packed into tiles and their keys split") {
  Problem problem = problemOf(128, 128, DType::BF16, 8192);
  problem.direction = Direction::Forward;
  problem.seqQ = 1;
  problem.headsQ = 16;
  problem.causal = false;
  const Target target = Target::parse("sm_90a").value();
  CandidateOptions all = optionsOf();
  all.slowest = 100;
  all.most = 100000;
  auto kinds = [&](const Problem &p) {
    std::set<std::pair<bool, bool>> found;
    for (const Candidate &candidate : listOf(p, target, KernelRole::Forward, all).kept)
      found.insert({candidate.schedule.packHeads, candidate.schedule.splitKV > 1});
    return found;
  };
  CHECK(kinds(problem).size() == 4);
  problem.seqQ = 8192; // fills the device by itself
  for (auto [packs, splits] : kinds(problem))
    CHECK_FALSE(splits);
}

TEST_CASE("ranges that mean nothing are refused with what is accepted") {
  for (const char *text : {"tile_q", "tile_q=", "tile_q=16:", "tile_q=32:16", "tile_q=a|b", "tiles=16", "up.tile_q=16",
                           "tile_q=16||32", "tile_q=1:100000:1", "stages=0", "tile_q=16,,stages=1"}) {
    auto parsed = RangeOverrides::parse(text);
    CAPTURE(text);
    REQUIRE(!parsed);
    CHECK(parsed.error().message.find("--range") == 0);
    CHECK(parsed.error().message.find("expected") != std::string::npos);
  }
}
