#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/Kernel.h"
#include <doctest/doctest.h>
#include <functional>

using namespace tilewright;

namespace {

bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

KernelPlan plan(KernelRole role, const char *target = "sm_80") {
  KernelPlan plan;
  plan.problem.headsQ = 8;
  plan.problem.headsKV = 2;
  plan.target = Target::parse(target).value();
  plan.role = role;
  plan.schedule.tileQ = 64;
  plan.schedule.tileKV = 32;
  return plan;
}

alignas(64) char memory[64];

KernelArgs arguments() {
  KernelArgs args;
  for (TensorRef *ref : {&args.q, &args.k, &args.v, &args.o, &args.dO, &args.dQ, &args.dK, &args.dV})
    *ref = {memory, 512 * 1000, 64, 512};
  args.lse = args.delta = reinterpret_cast<float *>(memory);
  args.batch = 3, args.headsQ = 8, args.headsKV = 2, args.seqQ = 129, args.seqKV = 100;
  args.scale = 1;
  return args;
}

constexpr KernelRole kRoles[] = {KernelRole::Forward, KernelRole::Delta, KernelRole::DQ, KernelRole::DKV};

} // namespace

TEST_CASE("blocks: tiles x heads x batch of the axis that the role owns") {
  for (KernelRole role : kRoles)
    CHECK(blockCount(plan(role), arguments()).value() == (role == KernelRole::DKV ? 4 * 2 * 3 : 3 * 8 * 3));
  KernelArgs exact = arguments();
  exact.seqQ = 128, exact.seqKV = 96;
  CHECK(blockCount(plan(KernelRole::Forward), exact).value() == 2 * 8 * 3);
  CHECK(blockCount(plan(KernelRole::DKV), exact).value() == 3 * 2 * 3);
  for (auto change : std::initializer_list<std::function<void(KernelArgs &)>>{
           [](KernelArgs &a) { a.batch = 0; }, [](KernelArgs &a) { a.headsQ = a.headsKV = 0; },
           [](KernelArgs &a) { a.seqQ = a.seqKV = 0; }}) {
    KernelArgs empty = arguments();
    change(empty);
    for (KernelRole role : kRoles)
      CHECK(blockCount(plan(role), empty).value() == 0);
  }
}

TEST_CASE("too many blocks and impossible sizes are refused") {
  KernelArgs args = arguments();
  args.batch = 1 << 20, args.headsQ = 1 << 10, args.seqQ = 128; // 2^31 blocks
  auto blocks = blockCount(plan(KernelRole::Forward), args);
  REQUIRE_FALSE(blocks);
  CHECK(contains(blocks.error().message, "2 tiles x 1024 heads x 1048576 batch entries are more than 2147483647"));
  args.headsQ = 1023;
  CHECK(blockCount(plan(KernelRole::Forward), args));
  args.batch = args.headsQ = 2147483647, args.seqQ = 1 << 28; // Overflows 64 bits.
  CHECK_FALSE(blockCount(plan(KernelRole::Forward), args));
  args = arguments();
  args.seqQ = -1;
  CHECK(contains(blockCount(plan(KernelRole::DKV), args).error().message, "query length: expected 0 to"));
  args = arguments();
  args.seqKV = (1 << 28) + 1;
  CHECK(contains(blockCount(plan(KernelRole::Forward), args).error().message, "kv length"));
}

TEST_CASE("each role asks for the tensors it uses, by name, and for no others") {
  struct Case {
    KernelRole role;
    std::vector<std::string> used;
  };
  const Case cases[] = {{KernelRole::Forward, {"q", "k", "v", "o", "lse"}},
                        {KernelRole::Delta, {"o", "do", "delta"}},
                        {KernelRole::DQ, {"q", "k", "v", "do", "dq", "lse", "delta"}},
                        {KernelRole::DKV, {"q", "k", "v", "do", "dk", "dv", "lse", "delta"}}};
  for (const Case &each : cases) {
    CHECK(checkArgs(plan(each.role), arguments()));
    KernelArgs args = arguments();
    const std::pair<std::string, std::function<void()>> removals[] = {
        {"q", [&] { args.q.data = nullptr; }},   {"k", [&] { args.k.data = nullptr; }},
        {"v", [&] { args.v.data = nullptr; }},   {"o", [&] { args.o.data = nullptr; }},
        {"do", [&] { args.dO.data = nullptr; }}, {"dq", [&] { args.dQ.data = nullptr; }},
        {"dk", [&] { args.dK.data = nullptr; }}, {"dv", [&] { args.dV.data = nullptr; }},
        {"lse", [&] { args.lse = nullptr; }},    {"delta", [&] { args.delta = nullptr; }}};
    for (const auto &[name, remove] : removals) {
      args = arguments();
      remove();
      Status status = checkArgs(plan(each.role), args);
      const bool used = std::ranges::find(each.used, name) != each.used.end();
      CHECK(status.has_value() != used);
      if (!status) CHECK(status.error().message.starts_with(name + ": no data"));
    }
  }
}

TEST_CASE("a split forward has a block for each part, and leaves its results to merge") {
  KernelPlan forward = plan(KernelRole::Forward, "cpu"), merge = plan(KernelRole::Merge, "cpu");
  forward.schedule.splitKV = merge.schedule.splitKV = 5;
  forward.problem.dimV = merge.problem.dimV = 24;
  CHECK(blockCount(forward, arguments()).value() == 3 * 8 * 3 * 5);
  CHECK(blockCount(merge, arguments()).value() == 3 * 8 * 3);
  // (batch, heads, tiles, parts) states of 64 rows of m, l and o.
  CHECK(partialsBytes(forward, arguments()) == int64_t{3} * 8 * 3 * 5 * 64 * (24 + 2) * 4);
  CHECK(partialsBytes(merge, arguments()) == partialsBytes(forward, arguments()));
  CHECK(partialsBytes(plan(KernelRole::Forward, "cpu"), arguments()) == 0);

  KernelArgs args = arguments();
  for (const KernelPlan *each : {&forward, &merge}) {
    args.partials = nullptr;
    CHECK(contains(checkArgs(*each, args).error().text(), "partials: no data"));
    args.partials = reinterpret_cast<float *>(memory + 4);
    CHECK(contains(checkArgs(*each, args).error().text(), "is not a multiple of 64 bytes"));
    args.partials = reinterpret_cast<float *>(memory);
    CHECK(checkArgs(*each, args));
  }
  args.o.data = nullptr, args.lse = nullptr; // merge's
  CHECK(checkArgs(forward, args));
  CHECK(contains(checkArgs(merge, args).error().message, "o: no data"));
  args = arguments();
  args.partials = reinterpret_cast<float *>(memory);
  args.q.data = args.k.data = args.v.data = nullptr; // forward's
  CHECK(checkArgs(merge, args));
  args = arguments();
  args.batch = 1 << 20, args.headsQ = 1 << 9, args.seqQ = 64; // 2^29 without parts
  CHECK(contains(blockCount(forward, args).error().message, "x 5 parts are more than 2147483647 blocks"));
}

TEST_CASE("without keys or queries their tensors may be missing") {
  KernelArgs args = arguments();
  args.seqKV = 0, args.k.data = args.v.data = nullptr;
  CHECK(checkArgs(plan(KernelRole::Forward), args));
  CHECK(checkArgs(plan(KernelRole::DQ), args));
  args = arguments();
  args.seqQ = 0, args.q.data = args.dO.data = nullptr, args.lse = args.delta = nullptr;
  CHECK(checkArgs(plan(KernelRole::DKV), args));
}

TEST_CASE("CUDA needs 16-byte addresses and strides, the CPU does not") {
  KernelArgs args = arguments();
  args.k.data = memory + 8;
  CHECK(contains(checkArgs(plan(KernelRole::Forward), args).error().message, "k: address"));
  CHECK(checkArgs(plan(KernelRole::Forward, "cpu"), args));
  args = arguments();
  args.v.rowStride = 516;
  CHECK(contains(checkArgs(plan(KernelRole::Forward), args).error().message,
                 "v: row stride 516 is not a multiple of 8 elements (16 bytes)"));
  args = arguments();
  args.o.batchStride = 3;
  CHECK_FALSE(checkArgs(plan(KernelRole::Forward), args));
  args.batch = 1; // A stride that is never taken may be anything.
  CHECK(checkArgs(plan(KernelRole::Forward), args));
}

TEST_CASE("head counts must have the plan's ratio, tables must be there") {
  KernelArgs args = arguments();
  args.headsQ = 6;
  CHECK(contains(checkArgs(plan(KernelRole::Forward), args).error().message,
                 "made for 4 query heads a kv head, found 6 and 2"));
  KernelPlan tables = plan(KernelRole::Forward);
  tables.problem.tables = {{"doc", false, {TableAxis::Q}}};
  args = arguments();
  CHECK(contains(checkArgs(tables, args).error().message, "table doc"));
  args.tables[0].data = memory;
  CHECK(checkArgs(tables, args));
}
