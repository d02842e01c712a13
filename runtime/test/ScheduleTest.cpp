#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/plan/KernelPlan.h"
#include <cmath>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace tilewright;

namespace {

bool contains(const std::string &text, std::string_view piece) { return text.find(piece) != std::string::npos; }

Target target(std::string_view name) {
  auto parsed = Target::parse(name);
  REQUIRE(parsed);
  return *parsed;
}

Problem problemOf(int64_t dimQK, int64_t dimV, DType dtype = DType::BF16, int64_t length = 4096) {
  Problem problem;
  problem.dimQK = dimQK;
  problem.dimV = dimV;
  problem.dtype = dtype;
  problem.seqQ = problem.seqKV = length;
  problem.direction = Direction::Backward;
  return problem;
}

std::string errorOf(const Schedule &schedule, const Problem &problem, std::string_view name,
                    KernelRole role = KernelRole::Forward) {
  Status status = schedule.validate(problem, target(name), role);
  return status ? "" : status.error().text();
}

constexpr KernelRole kRoles[] = {KernelRole::Forward, KernelRole::Delta, KernelRole::DQ, KernelRole::DKV};

} // namespace

TEST_CASE("every default is within the limits of its target") {
  for (const Target &cuda : Target::cudaTargets())
    for (DType dtype : {DType::BF16, DType::F16, DType::F32})
      for (int64_t dimQK = 8; dimQK <= 256; dimQK += 8)
        for (int64_t dimV : {int64_t{8}, int64_t{64}, int64_t{128}, dimQK, int64_t{256}})
          for (int64_t length : {1, 64, 4096})
            for (KernelRole role : kRoles) {
              Problem problem = problemOf(dimQK, dimV, dtype, length);
              Schedule schedule = Schedule::defaultFor(problem, cuda, role);
              Status status = schedule.validate(problem, cuda, role);
              // Three bf16 planes of an fp32 operand: wide gradients do not fit 99 KiB, and are refused saying so.
              bool isGradient = role == KernelRole::DQ || role == KernelRole::DKV;
              bool tooWide = dtype == DType::F32 && isGradient && cuda.sharedBytesPerBlock < 110000 && dimQK + dimV > 256;
              if (tooWide && !status) {
                CHECK(contains(status.error().message, "shared memory"));
                continue;
              }
              CAPTURE(dimQK);
              CAPTURE(dimV);
              REQUIRE_MESSAGE(status, cuda.name << ": " << status.error().text());
              CHECK(schedule.sharedBytes(problem, cuda, role) <= cuda.sharedBytesPerBlock);
            }
  for (int64_t dim : {1, 7, 100, 512})
    for (KernelRole role : kRoles) {
      Problem problem = problemOf(dim, dim, DType::F32);
      CHECK(Schedule::defaultFor(problem, Target::hostCpu(), role).validate(problem, Target::hostCpu(), role));
    }
}

TEST_CASE("defaults suit the problem") {
  Problem problem = problemOf(128, 128);
  Schedule wide = Schedule::defaultFor(problem, target("sm_80"), KernelRole::Forward);
  CHECK(wide.tileQ == 128);
  CHECK(wide.tileKV == 32);
  CHECK(wide.blocksPerSM == 2);
  CHECK((wide.order == Order::Plain));
  // 99 KiB of shared memory have no room for two such blocks.
  CHECK(Schedule::defaultFor(problemOf(256, 256), target("sm_89"), KernelRole::Forward).tileQ < 128);
  problem.causal = true;
  CHECK((Schedule::defaultFor(problem, target("sm_80"), KernelRole::Forward).order == Order::LongestFirst));
  problem.seqQ = 1;
  CHECK(Schedule::defaultFor(problem, target("sm_80"), KernelRole::Forward).tileQ == 64);
  CHECK(Schedule::defaultFor(problem, Target::hostCpu(), KernelRole::Forward).tileQ == 16);
}

TEST_CASE("shared memory is what the tiles take") {
  // Rows of 128 elements have a pitch of 136: 272 bytes.
  Schedule schedule{.tileQ = 128, .tileKV = 64, .stages = 2, .warps = 4};
  Problem problem = problemOf(128, 128);
  Target sm80 = target("sm_80");
  CHECK(schedule.sharedBytes(problem, sm80, KernelRole::Forward) == 128 * 272 + 2 * 64 * 2 * 272);
  CHECK(schedule.sharedBytes(problem, sm80, KernelRole::DQ) == 128 * 544 + 128 * 8 + 2 * 64 * 544);
  CHECK(schedule.sharedBytes(problem, sm80, KernelRole::DKV) == 64 * 544 + 2 * (128 * 544 + 128 * 8));
  CHECK(schedule.sharedBytes(problem, sm80, KernelRole::Delta) == 0);
  CHECK(schedule.sharedBytes(problem, Target::hostCpu(), KernelRole::Forward) == 0);
  problem.dimV = 40; // 48 + 8 elements
  CHECK(schedule.sharedBytes(problem, sm80, KernelRole::Forward) == 128 * 272 + 2 * 64 * (272 + 112));
  problem.dtype = DType::F32;
  CHECK(schedule.sharedBytes(problem, sm80, KernelRole::Forward) == 3 * (128 * 272 + 2 * 64 * (272 + 112)));
  // Warps that split columns exchange P and dS, 64 x (128 + 8) elements each.
  schedule.columnWarps = 2;
  CHECK(schedule.sharedBytes(problemOf(128, 128), sm80, KernelRole::DKV) ==
        64 * 544 + 2 * (128 * 544 + 128 * 8) + 2 * 64 * 272);
}

TEST_CASE("registers are the accumulators and an allowance") {
  Schedule schedule{.tileQ = 128, .tileKV = 64, .stages = 2, .warps = 4};
  Target sm80 = target("sm_80");
  CHECK(schedule.registersPerThread(problemOf(128, 128), sm80, KernelRole::Forward) == 40 + 32 * (128 + 64) / 32);
  CHECK(schedule.registersPerThread(problemOf(64, 128), sm80, KernelRole::DQ) == 40 + 32 * (64 + 128) / 32);
  CHECK(schedule.registersPerThread(problemOf(64, 128), sm80, KernelRole::DKV) == 40 + 16 * (64 + 128 + 256) / 32);
  CHECK(schedule.registersPerThread(problemOf(64, 128), Target::hostCpu(), KernelRole::DKV) == 0);
}

TEST_CASE("limits are named with the number that breaks them") {
  Problem problem = problemOf(128, 128);
  std::string shared = errorOf({.tileQ = 128, .tileKV = 128, .stages = 4, .warps = 8}, problem, "sm_80");
  CHECK(shared == "plan: schedule of forward: shared memory: tile_q=128, tile_kv=128, stages=4 need 313344 bytes a "
                  "block; sm_80 has 166912\n  hint: lower tile_q, tile_kv or stages; for this kernel alone: "
                  "forward.tile_kv=...");
  std::string registers = errorOf({.tileQ = 128, .tileKV = 128, .stages = 1, .warps = 4}, problem, "sm_90");
  CHECK(contains(registers, "need about 296 a thread; sm_90 has 255 at 128 threads a block"));
  CHECK(errorOf({.tileQ = 128, .tileKV = 64, .stages = 2, .warps = 4}, problem, "sm_80") == "");
  CHECK(
      contains(errorOf({.tileQ = 128, .tileKV = 64, .stages = 2, .warps = 4}, problem, "sm_120"), "sm_120 has 101376"));
}

TEST_CASE("limits of Hopper's forward") {
  Problem problem = problemOf(128, 128);
  auto error = [&](Schedule schedule) {
    schedule.tileKV = schedule.tileKV ? schedule.tileKV : 128;
    return errorOf(schedule, problem, "sm_90a");
  };
  CHECK(error({.tileQ = 128, .tileKV = 128, .stages = 2, .warps = 8, .overlap = Overlap::Both}) == "");
  CHECK(contains(error({.tileQ = 32, .tileKV = 128, .warps = 2}), "take 64, 128, 192 or 256 rows"));
  CHECK(contains(error({.tileQ = 128, .tileKV = 128, .warps = 4}), "warps: tile_q=128 takes 8"));
  CHECK(contains(error({.tileQ = 128, .tileKV = 128, .warps = 8, .blocksPerSM = 2}), "expected 1, found 2"));
  CHECK(contains(error({.tileQ = 64, .tileKV = 128, .warps = 4, .overlap = Overlap::PingPong}),
                 "ping_pong needs two warp groups or more, tile_q=64 has one"));
  CHECK(contains(error({.tileQ = 128, .tileKV = 128, .stages = 4, .warps = 8}), "sm_90a has 232448"));
  CHECK(contains(error({.tileQ = 128, .tileKV = 240, .stages = 1, .warps = 8}),
                 "need about 276 a thread; 2 consumer groups leave 240"));
  CHECK(contains(errorOf({.tileQ = 128, .tileKV = 32, .warps = 8, .overlap = Overlap::Both}, problem, "sm_80"),
                 "overlap"));
}

TEST_CASE("fields out of range name the accepted range") {
  Problem problem = problemOf(64, 64);
  CHECK(contains(errorOf({.tileQ = 100}, problem, "sm_80"),
                 "tile_q: expected a multiple of 16 from 16 to 1024, found 100"));
  CHECK(contains(errorOf({.tileKV = 0}, problem, "sm_80"), "tile_kv: expected a multiple of 16"));
  CHECK(contains(errorOf({.tileKV = -16}, problem, "cpu"), "found -16"));
  CHECK(contains(errorOf({.tileKV = 1040}, problem, "cpu"), "found 1040"));
  CHECK(contains(errorOf({.tileQ = 512}, problem, "sm_80"), "tiles up to 256, found 512"));
  CHECK(contains(errorOf({.stages = 0}, problem, "sm_80"), "stages: expected 1 to 8, found 0"));
  CHECK(contains(errorOf({.stages = 9}, problem, "sm_80"), "found 9"));
  CHECK(contains(errorOf({.warps = 3}, problem, "sm_80"), "warps: expected 1, 2, 4, 8, 12 or 16, found 3"));
  CHECK(contains(errorOf({.tileQ = 192, .warps = 12}, problem, "sm_80"), "expected 1, 2, 4, 8 or 16, found 12"));
  CHECK(contains(errorOf({.warps = 0}, problem, "sm_80"), "found 0"));
  CHECK(contains(errorOf({.warps = -4}, problem, "sm_80"), "found -4"));
  CHECK(contains(errorOf({.rescaleThreshold = 17}, problem, "sm_80"), "rescale_threshold: expected 0 to 16, found 17"));
  CHECK(contains(errorOf({.rescaleThreshold = NAN}, problem, "sm_80"), "found nan"));
  CHECK(contains(errorOf({.stages = 2, .warps = 1}, problem, "cpu"), "stages: the cpu target has 1, found 2"));
  CHECK(contains(errorOf({.stages = 1, .warps = 2}, problem, "cpu"), "warps: the cpu target has 1, found 2"));
  CHECK(errorOf({.stages = 1, .warps = 1}, problem, "cpu") == "");
}

TEST_CASE("keys are split by the cpu's forward, and merge follows it") {
  Problem problem = problemOf(64, 64);
  const Schedule split{.stages = 1, .warps = 1, .splitKV = 4};
  CHECK(errorOf(split, problem, "cpu") == "");
  CHECK(errorOf(split, problem, "cpu", KernelRole::Merge) == "");
  CHECK(contains(errorOf({.splitKV = 0}, problem, "cpu"), "split_kv: expected 1 to 1024, found 0"));
  CHECK(contains(errorOf({.splitKV = 1025}, problem, "cpu"), "found 1025"));
  CHECK(errorOf({.stages = 1, .warps = 1}, problem, "cpu", KernelRole::Merge) ==
        "plan: schedule of merge: split_kv: expected at least 2, found 1\n  hint: a forward in one part leaves nothing "
        "to merge");
  CHECK(contains(errorOf(split, problem, "cpu", KernelRole::DQ), "split_kv: only forward splits its keys, found 4"));
  CHECK(errorOf({.splitKV = 4}, problem, "sm_90") ==
        "plan: schedule of forward: split_kv: a block of a sm_90 kernel visits all keys of its queries (1), found 4\n"
        "  hint: leave it out; sm_90a in bf16 and fp16, and the cpu target, split keys");
  CHECK(errorOf({.splitKV = 4}, problem, "sm_90a") == "");
  CHECK(contains(errorOf({.splitKV = 4}, problemOf(64, 64, DType::F32), "sm_90a"), "visits all keys"));
  auto overrides = ScheduleOverrides::parse("forward.split_kv=6,forward.tile_q=32");
  REQUIRE(overrides);
  auto merge = KernelPlan::make(problem, Target::hostCpu(), KernelRole::Merge, *overrides);
  REQUIRE_MESSAGE(merge, merge.error().text());
  CHECK(merge->schedule.splitKV == 6);
  CHECK(merge->schedule.tileQ == 32);
  CHECK((forwardRoles(split) == std::vector{KernelRole::Forward, KernelRole::Merge}));
  CHECK((forwardRoles(Schedule{}) == std::vector{KernelRole::Forward}));
}

TEST_CASE("heads that share keys share tiles on sm_90a") {
  Problem problem = problemOf(64, 64);
  problem.headsQ = 12, problem.headsKV = 4;
  const Schedule packed{.tileQ = 64, .warps = 4, .packHeads = true};
  CHECK(errorOf(packed, problem, "sm_90a") == "");
  CHECK(contains(errorOf(packed, problem, "sm_90"), "pack_heads: expected false, found true"));
  CHECK(contains(errorOf({.stages = 1, .warps = 1, .packHeads = true}, problem, "cpu"), "pack_heads: expected false"));
  CHECK((queryTiles(packed, problem, 50, 12).positions == 21));
  CHECK((queryTiles(packed, problem, 50, 12).tiles == 3));
  CHECK((queryTiles(packed, problem, 50, 12).heads == 4));
  problem.score = "s + h";
  CHECK(errorOf(packed, problem, "sm_90a") == "");
  problem.mask = "k <= q + h";
  CHECK(contains(errorOf(packed, problem, "sm_90a"), "pack_heads: the mask differs between heads"));
  problem.mask = "";
  problem.headsQ = 4;
  CHECK(contains(errorOf(packed, problem, "sm_90a"), "expected 2 to tile_q=64 query heads a kv head, found 1"));
  problem.headsQ = 4 * 65;
  CHECK(contains(errorOf(packed, problem, "sm_90a"), "found 65"));
}

TEST_CASE("decoding on sm_90a packs heads and fills the SMs") {
  const Target hopper = Target::parse("sm_90a").value();
  Problem problem = problemOf(128, 128, DType::BF16, 65536);
  problem.seqQ = 1, problem.batch = 4, problem.headsQ = 96, problem.headsKV = 8;
  auto defaults = [&] { return Schedule::defaultFor(problem, hopper, KernelRole::Forward); };
  CHECK(defaults().packHeads);
  CHECK(defaults().splitKV == 4); // 32 tiles, 132 SMs
  problem.headsQ = 8;
  CHECK_FALSE(defaults().packHeads);
  CHECK(defaults().splitKV == 4);
  problem.batch = 64; // 512 tiles
  CHECK(defaults().splitKV == 1);
  problem.seqQ = 64, problem.headsQ = 64, problem.batch = 1; // tiles of one head are full
  CHECK_FALSE(defaults().packHeads);
  problem.seqKV = 512; // too short to be cut
  CHECK(defaults().splitKV == 1);
}

TEST_CASE("few queries over many keys keep all threads busy") {
  Problem problem = problemOf(64, 64, DType::BF16, 65536);
  problem.seqQ = 1;
  problem.headsQ = problem.headsKV = 2;
  Target host = Target::hostCpu();
  auto parts = [&](int threads) {
    host.threads = threads;
    return Schedule::defaultFor(problem, host, KernelRole::Forward).splitKV;
  };
  CHECK(parts(1) == 1);
  CHECK(parts(2) == 4); // 2 heads, four parts for each thread
  CHECK(parts(16) == 32);
  CHECK(parts(12) == 16); // a power of two
  CHECK(parts(64) == 64); // at least 1024 keys each
  problem.seqKV = 3000;
  CHECK(parts(16) == 2);
  problem.seqKV = 2000;
  CHECK(parts(16) == 1);
  problem.seqQ = problem.seqKV = 65536;
  CHECK(parts(64) == 1);
  problem.seqQ = 0;
  CHECK(parts(64) == 1);
  CHECK(Schedule::defaultFor(problem, host, KernelRole::DQ).splitKV == 1);
}

TEST_CASE("warps must share the owned rows evenly") {
  Problem problem = problemOf(64, 64);
  CHECK(contains(errorOf({.tileQ = 64, .warps = 8}, problem, "sm_80"),
                 "tile_q=64 over 8 warps is 8 rows each: expected 16 or 32"));
  CHECK(contains(errorOf({.tileQ = 80, .warps = 4}, problem, "sm_80"), "tile_q=80 over 4 warps is 20 rows each"));
  CHECK(contains(errorOf({.tileQ = 256, .warps = 4}, problem, "sm_80"), "tile_q=256 over 4 warps is 64 rows each"));
  CHECK(contains(errorOf({.tileKV = 48, .warps = 2}, problem, "sm_80", KernelRole::DKV), "tile_kv=48"));
  CHECK(errorOf({.tileKV = 64, .warps = 8, .columnWarps = 2}, problem, "sm_80", KernelRole::DKV) == "");
  CHECK(contains(errorOf({.tileQ = 80, .tileKV = 64, .warps = 8, .columnWarps = 2}, problem, "sm_80", KernelRole::DKV),
                 "column_warps=2 split tile_q=80: expected a multiple of 32"));
  CHECK(contains(errorOf({.columnWarps = 2}, problem, "sm_80"), "only dkv and fused split columns"));
  CHECK(contains(errorOf({.columnWarps = 3}, problem, "sm_80"), "column_warps: expected 1, 2 or 4, found 3"));
  CHECK(contains(errorOf({.blocksPerSM = 9}, problem, "sm_80"), "blocks_per_sm: expected 1 to 8, found 9"));
}

TEST_CASE("head dims that CUDA kernels cannot take name the next valid one") {
  Schedule schedule;
  CHECK(contains(errorOf(schedule, problemOf(100, 64), "sm_80"), "dim_qk: sm_80 kernels take head dims that are "
                                                                 "multiples of 8"));
  CHECK(contains(errorOf(schedule, problemOf(100, 64), "sm_80"), "pad with zeros to 104"));
  CHECK(contains(errorOf(schedule, problemOf(64, 264), "sm_80"), "dim_v: sm_80 kernels take head dims up to 256, found "
                                                                 "264"));
  CHECK(errorOf({.stages = 1, .warps = 1}, problemOf(100, 264), "cpu") == "");
}

TEST_CASE("overrides set fields for all kernels or for one") {
  auto overrides = ScheduleOverrides::parse("tile_q=128, dkv.tile_q = 32,stages=3,order=longest_first,"
                                            "rescale_threshold=8.5,dq.warps=2");
  REQUIRE(overrides);
  CHECK_FALSE(overrides->empty());
  Schedule forward, dkv, dq;
  REQUIRE(overrides->apply(KernelRole::Forward, forward));
  REQUIRE(overrides->apply(KernelRole::DKV, dkv));
  REQUIRE(overrides->apply(KernelRole::DQ, dq));
  CHECK(forward.tileQ == 128);
  CHECK(forward.stages == 3);
  CHECK(forward.warps == 4);
  CHECK((forward.order == Order::LongestFirst));
  CHECK(forward.rescaleThreshold == 8.5);
  CHECK(dkv.tileQ == 32);
  CHECK(dkv.stages == 3);
  CHECK(dq.tileQ == 128);
  CHECK(dq.warps == 2);
  CHECK(ScheduleOverrides::parse("")->empty());
  CHECK(ScheduleOverrides::parse("  ")->empty());
}

TEST_CASE("overrides as JSON mean what their text does") {
  auto read = [](const char *text) { return ScheduleOverrides::fromJson(nlohmann::json::parse(text)); };
  auto overrides = read(R"({"tile_q": 128, "dkv.tile_q": 32, "rescale_threshold": 8.5, "backward": "two_kernel"})");
  REQUIRE(overrides);
  Schedule forward, dkv;
  REQUIRE(overrides->apply(KernelRole::Forward, forward));
  REQUIRE(overrides->apply(KernelRole::DKV, dkv));
  CHECK(forward.tileQ == 128);
  CHECK(forward.rescaleThreshold == 8.5);
  CHECK(dkv.tileQ == 32);
  CHECK((overrides->backward() == Backward::TwoKernel));
  CHECK(read("{}")->empty());
  CHECK(contains(read("[1]").error().text(), "expected an object"));
  CHECK(contains(read(R"({"tile_q": [64]})").error().text(), "tile_q"));
  CHECK(contains(read(R"({"tile_q=64,warps": 2})").error().text(), "tile_q=64,warps"));
  CHECK(contains(read(R"({"tile": 64})").error().text(), "unknown field \"tile\""));
}

TEST_CASE("overrides that say nothing sensible are refused") {
  auto error = [](std::string_view text) {
    auto overrides = ScheduleOverrides::parse(text);
    return overrides ? std::string() : overrides.error().text();
  };
  CHECK(contains(error("tile=64"), "unknown field \"tile\""));
  CHECK(contains(error("tile=64"),
                 "tile_q, tile_kv, stages, warps, column_warps, blocks_per_sm, order, overlap, split_kv, pack_heads, rescale_threshold"));
  CHECK(contains(error("forward.tile=64"), "unknown field \"tile\""));
  CHECK(contains(error("fwd.tile_q=64"), "expected forward, delta, dq, dkv, fused, convert or merge, found \"fwd\""));
  CHECK(contains(error("tile_q"), "expected field=value, found \"tile_q\""));
  CHECK(contains(error("tile_q=64,"), "expected field=value"));
  CHECK(contains(error(",tile_q=64"), "expected field=value"));
  CHECK(contains(error("tile_q="), "expected an integer, found \"\""));
  CHECK(contains(error("tile_q=sixty"), "expected an integer, found \"sixty\""));
  CHECK(contains(error("tile_q=64x"), "found \"64x\""));
  CHECK(contains(error("tile_q=99999999999"), "expected an integer"));
  CHECK(contains(error("tile_q=60"), "expected a multiple of 16 from 16 to 1024, found 60"));
  CHECK(contains(error("stages=0"), "expected 1 to 8, found 0"));
  CHECK(contains(error("warps=5"), "1, 2, 4, 8, 12 or 16"));
  CHECK(contains(error("order=random"), "expected plain or longest_first, found \"random\""));
  CHECK(contains(error("rescale_threshold=100"), "0 to 16"));
  CHECK(contains(error("rescale_threshold=x"), "expected a number"));
  CHECK(contains(error("tile_q=64,tile_q=32"), "tile_q is set twice"));
}

TEST_CASE("fields left open follow those that are set") {
  // The default for d256 has 8 warps, which 64 rows have no room for.
  auto make = [](std::string_view text, KernelRole role) {
    return KernelPlan::make(problemOf(256, 256), target("sm_90a"), role, *ScheduleOverrides::parse(text));
  };
  CHECK(Schedule::defaultFor(problemOf(256, 256), target("sm_90a"), KernelRole::Forward).warps == 8);
  auto plan = make("tile_q=64", KernelRole::Forward);
  REQUIRE(plan);
  CHECK(plan->schedule.tileQ == 64);
  CHECK(plan->schedule.warps == 4);
  CHECK(plan->schedule.overlap == Overlap::Intra); // one warp group has no other to alternate with
  auto impossible = make("tile_q=256,tile_kv=256", KernelRole::Forward);
  REQUIRE_FALSE(impossible);
  // The error is about the best candidate, not the last resort.
  CHECK(contains(impossible.error().message, "shared memory: tile_q=256, tile_kv=256, stages=2"));
}

TEST_CASE("canonical text shows every field") {
  CHECK(Schedule{}.canonicalText() ==
        "tile_q=64,tile_kv=64,stages=2,warps=4,column_warps=1,blocks_per_sm=1,order=plain,overlap=none,split_kv=1,pack_heads=false,"
        "rescale_threshold=0");
  CHECK(Schedule{.order = Order::LongestFirst, .rescaleThreshold = 8.5}.canonicalText() ==
        "tile_q=64,tile_kv=64,stages=2,warps=4,column_warps=1,blocks_per_sm=1,order=longest_first,overlap=none,split_kv=1,pack_heads=false,"
        "rescale_threshold=8.5");
}
