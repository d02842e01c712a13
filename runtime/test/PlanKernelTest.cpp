#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/plan/KernelPlan.h"
#include <doctest/doctest.h>
#include <set>

using namespace tilewright;

namespace {

KernelPlan plan(KernelRole role = KernelRole::Forward, std::string_view target = "sm_80") {
  Problem problem;
  problem.headsQ = 8;
  problem.headsKV = 2;
  problem.seqQ = problem.seqKV = 1000;
  problem.dimQK = problem.dimV = 128;
  if (role != KernelRole::Forward) problem.direction = Direction::Backward;
  auto made = KernelPlan::make(problem, *Target::parse(target), role);
  REQUIRE(made);
  return *made;
}

template <class Change> std::string textWith(Change change, KernelRole role = KernelRole::Forward) {
  KernelPlan changed = plan(role);
  change(changed);
  return changed.canonicalText();
}

} // namespace

TEST_CASE("canonical text is stable and readable") {
  CHECK(plan().canonicalText() ==
        "role=forward\ntarget=sm_80\n"
        "schedule=tile_q=128,tile_kv=32,stages=2,warps=4,column_warps=1,blocks_per_sm=2,order=plain,overlap=none,split_kv=1,pack_heads=false,"
        "rescale_threshold=8\n"
        "dim_qk=128\ndim_v=128\ndtype=bf16\ngroup=4\nmask=\nscore=\ntables=\n");
}

TEST_CASE("every compile-time field changes the text, no run-time field does") {
  std::string base = plan().canonicalText();
  std::set<std::string> texts{base};
  auto differs = [&](auto change) { CHECK(texts.insert(textWith(change)).second); };
  differs([](KernelPlan &p) { p.problem.dimQK = 64; });
  differs([](KernelPlan &p) { p.problem.dimV = 64; });
  differs([](KernelPlan &p) { p.problem.dtype = DType::F16; });
  differs([](KernelPlan &p) { p.problem.headsKV = 8; });
  differs([](KernelPlan &p) { p.problem.causal = true; });
  differs([](KernelPlan &p) { p.problem.window = {5, 6}; });
  differs([](KernelPlan &p) { p.problem.softcap = 3; });
  differs([](KernelPlan &p) { p.problem.mask = "k < 5"; });
  differs([](KernelPlan &p) { p.problem.score = "s + q"; });
  differs([](KernelPlan &p) { p.problem.tables = {{"t", false, {TableAxis::K}}}; });
  differs([](KernelPlan &p) { p.problem.tables = {{"t", true, {TableAxis::K}}}; });
  differs([](KernelPlan &p) { p.problem.tables = {{"t", false, {TableAxis::B, TableAxis::K}}}; });
  differs([](KernelPlan &p) { p.schedule.tileQ = 64; });
  differs([](KernelPlan &p) { p.schedule.tileKV = 64; });
  differs([](KernelPlan &p) { p.schedule.stages = 3; });
  differs([](KernelPlan &p) { p.schedule.warps = 8; });
  differs([](KernelPlan &p) { p.schedule.columnWarps = 2; });
  differs([](KernelPlan &p) { p.schedule.blocksPerSM = 1; });
  differs([](KernelPlan &p) { p.schedule.order = Order::LongestFirst; });
  differs([](KernelPlan &p) { p.schedule.splitKV = 2; });
  differs([](KernelPlan &p) { p.schedule.rescaleThreshold = 3; });
  differs([](KernelPlan &p) { p.target = *Target::parse("sm_86"); });
  differs([](KernelPlan &p) { p.target = *Target::parse("cpu"); });
  differs([](KernelPlan &p) { p.role = KernelRole::DQ; });
  auto same = [&](auto change) { CHECK(textWith(change) == base); };
  same([](KernelPlan &p) { p.problem.batch = 9; });
  same([](KernelPlan &p) { p.problem.seqQ = 9; });
  same([](KernelPlan &p) { p.problem.seqKV = 9; });
  same([](KernelPlan &p) { p.problem.scale = 9; });
  same([](KernelPlan &p) { p.problem.layout = Layout::BHSD; });
  same([](KernelPlan &p) { p.problem.headsQ = 4, p.problem.headsKV = 1; });
  same([](KernelPlan &p) { p.problem.direction = Direction::Backward; });
  same([](KernelPlan &p) { p.target.smCount = 7; });
}

TEST_CASE("delta depends on the output's rows alone") {
  std::string base = plan(KernelRole::Delta).canonicalText();
  CHECK(textWith([](KernelPlan &p) { p.problem.causal = true; }, KernelRole::Delta) == base);
  CHECK(textWith([](KernelPlan &p) { p.problem.dimQK = 64; }, KernelRole::Delta) == base);
  CHECK(textWith([](KernelPlan &p) { p.schedule.stages = 4; }, KernelRole::Delta) == base);
  CHECK(textWith([](KernelPlan &p) { p.problem.dimV = 64; }, KernelRole::Delta) != base);
  CHECK(textWith([](KernelPlan &p) { p.problem.dtype = DType::F32; }, KernelRole::Delta) != base);
  CHECK(textWith([](KernelPlan &p) { p.schedule.warps = 2; }, KernelRole::Delta) != base);
}

TEST_CASE("symbols are C identifiers that tell kernels apart") {
  std::string symbol = plan().symbol();
  CHECK(symbol.substr(0, symbol.size() - 8) == "tw_forward_bf16_d128_m128n32s2w4_");
  CHECK(symbol.substr(symbol.size() - 8) == plan().hash().substr(0, 8));
  std::set<std::string> symbols;
  for (KernelRole role : {KernelRole::Forward, KernelRole::Delta, KernelRole::DQ, KernelRole::DKV})
    for (const char *target : {"sm_80", "sm_90a", "cpu"}) {
      std::string name = plan(role, target).symbol();
      CHECK(symbols.insert(name).second);
      CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos);
    }
  KernelPlan uneven = plan();
  uneven.problem.dimV = 64;
  CHECK(uneven.symbol().find("_d128x64_") != std::string::npos);
}

TEST_CASE("roles run in launch order and belong to a direction") {
  CHECK((rolesOf(Direction::Forward) == std::vector{KernelRole::Forward}));
  CHECK((rolesOf(Direction::Backward) == std::vector{KernelRole::Delta, KernelRole::DKV, KernelRole::DQ}));
  KernelPlan gradients = plan(KernelRole::DQ);
  CHECK(gradients.validate());
  gradients.problem.direction = Direction::Forward;
  Status status = gradients.validate();
  REQUIRE_FALSE(status);
  CHECK(status.error().message == "role: dq computes gradients, but the problem's direction is forward");
}

TEST_CASE("merge's code depends on how states lie and on what o is, not on what they are states of") {
  KernelPlan merge = plan(KernelRole::Forward, "cpu");
  merge.role = KernelRole::Merge;
  merge.schedule.splitKV = 3;
  merge.problem.direction = Direction::Forward;
  CHECK(merge.validate());
  const std::string text = merge.canonicalText();
  KernelPlan other = merge;
  other.problem.mask = "k < 7";
  other.problem.dimQK += 8;
  other.schedule.tileKV = 128;
  CHECK(other.canonicalText() == text);
  for (auto change : std::initializer_list<void (*)(KernelPlan &)>{
           [](KernelPlan &p) { p.schedule.splitKV = 4; }, [](KernelPlan &p) { p.schedule.tileQ = 16; },
           [](KernelPlan &p) { p.problem.dimV = 8; }, [](KernelPlan &p) { p.problem.dtype = DType::F32; }}) {
    other = merge;
    change(other);
    CHECK(other.canonicalText() != text);
    CHECK(other.symbol() != merge.symbol());
  }
}

TEST_CASE("an invalid problem is refused before its schedule") {
  Problem problem;
  problem.headsQ = 33;
  problem.headsKV = 2;
  auto made = KernelPlan::make(problem, Target::hostCpu(), KernelRole::Forward);
  REQUIRE_FALSE(made);
  CHECK(made.error().message.find("33 query heads") != std::string::npos);
}

TEST_CASE("warps that are left open follow rows that are set") {
  KernelPlan wide = plan();
  auto overrides = ScheduleOverrides::parse("tile_q=32,tile_kv=64");
  REQUIRE(overrides);
  auto narrow = KernelPlan::make(wide.problem, wide.target, KernelRole::Forward, *overrides);
  REQUIRE_MESSAGE(narrow, narrow.error().text());
  CHECK(narrow->schedule.tileQ == 32);
  CHECK(narrow->schedule.warps == 2);
  // Set, they are kept, and refused.
  overrides = ScheduleOverrides::parse("tile_q=32,tile_kv=64,warps=4");
  REQUIRE(overrides);
  CHECK_FALSE(KernelPlan::make(wide.problem, wide.target, KernelRole::Forward, *overrides));
}

TEST_CASE("SHA-256 test vectors of FIPS 180-4") {
  CHECK(sha256Hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256Hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(plan().hash() == sha256Hex(plan().canonicalText()));
}
