#include "tilewright/plan/Schedule.h"
#include "JsonObject.h"
#include "ScheduleLimits.h"
#include "ScheduleNames.h"
#include <fmt/format.h>

namespace tilewright {

std::string_view toString(KernelRole role) {
  switch (role) {
  case KernelRole::Forward:
    return "forward";
  case KernelRole::Delta:
    return "delta";
  case KernelRole::DQ:
    return "dq";
  case KernelRole::DKV:
    return "dkv";
  case KernelRole::Fused:
    return "fused";
  case KernelRole::Convert:
    return "convert";
  case KernelRole::Merge:
    return "merge";
  }
  return "unknown role";
}

Expected<KernelRole> parseKernelRole(std::string_view text) {
  for (KernelRole role : {KernelRole::Forward, KernelRole::Delta, KernelRole::DQ, KernelRole::DKV, KernelRole::Fused,
                          KernelRole::Convert, KernelRole::Merge})
    if (text == toString(role)) return role;
  return fail(Stage::Input,
              fmt::format("expected forward, delta, dq, dkv, fused, convert or merge, found \"{}\"", text));
}

std::string_view nameOf(Order order) { return order == Order::Plain ? "plain" : "longest_first"; }

Expected<Order> parseOrder(std::string_view text) {
  for (Order order : {Order::Plain, Order::LongestFirst})
    if (text == nameOf(order)) return order;
  return fail(Stage::Input, fmt::format("expected plain or longest_first, found \"{}\"", text));
}

std::string_view nameOf(Overlap overlap) {
  switch (overlap) {
  case Overlap::None:
    return "none";
  case Overlap::Intra:
    return "intra";
  case Overlap::PingPong:
    return "ping_pong";
  case Overlap::Both:
    return "both";
  }
  return "unknown overlap";
}

Expected<Overlap> parseOverlap(std::string_view text) {
  for (Overlap overlap : {Overlap::None, Overlap::Intra, Overlap::PingPong, Overlap::Both})
    if (text == nameOf(overlap)) return overlap;
  return fail(Stage::Input, fmt::format("expected none, intra, ping_pong or both, found \"{}\"", text));
}

Status Schedule::validate(const Problem &problem, const Target &target, KernelRole role) const {
  if (Status status = checkFields(*this); !status) return status;
  return target.isCpu() ? checkCpu(*this, problem, role) : checkCuda(*this, problem, target, role);
}

std::vector<KernelRole> forwardRoles(const Schedule &forward) {
  if (forward.splitKV == 1) return {KernelRole::Forward};
  return {KernelRole::Forward, KernelRole::Merge};
}

int64_t packedHeads(const Schedule &schedule, const Problem &problem) {
  return schedule.packHeads ? problem.groupSize() : 1;
}

QueryTiles queryTiles(const Schedule &schedule, const Problem &problem, int64_t seqQ, int64_t headsQ) {
  const int64_t packed = packedHeads(schedule, problem), positions = schedule.tileQ / packed;
  return {positions, (seqQ + positions - 1) / positions, headsQ / packed};
}

std::string Schedule::canonicalText() const {
  return fmt::format("tile_q={},tile_kv={},stages={},warps={},column_warps={},blocks_per_sm={},order={},"
                     "overlap={},split_kv={},pack_heads={},rescale_threshold={}",
                     tileQ, tileKV, stages, warps, columnWarps, blocksPerSM, nameOf(order), nameOf(overlap), splitKV,
                     packHeads, rescaleThreshold);
}

void to_json(nlohmann::json &json, const Schedule &schedule) {
  json = {{"tile_q", schedule.tileQ},
          {"tile_kv", schedule.tileKV},
          {"stages", schedule.stages},
          {"warps", schedule.warps},
          {"column_warps", schedule.columnWarps},
          {"blocks_per_sm", schedule.blocksPerSM},
          {"order", nameOf(schedule.order)},
          {"overlap", nameOf(schedule.overlap)},
          {"split_kv", schedule.splitKV},
          {"pack_heads", schedule.packHeads},
          {"rescale_threshold", schedule.rescaleThreshold}};
}

Expected<Schedule> scheduleFromJson(const nlohmann::json &json) {
  Schedule schedule;
  JsonObject object(json, "schedule");
  object.read("tile_q", schedule.tileQ);
  object.read("tile_kv", schedule.tileKV);
  object.read("stages", schedule.stages);
  object.read("warps", schedule.warps);
  object.read("column_warps", schedule.columnWarps);
  object.read("blocks_per_sm", schedule.blocksPerSM);
  object.readName("order", schedule.order, parseOrder);
  object.readName("overlap", schedule.overlap, parseOverlap);
  object.read("split_kv", schedule.splitKV);
  object.read("pack_heads", schedule.packHeads);
  object.read("rescale_threshold", schedule.rescaleThreshold);
  if (Status status = object.finish(); !status) return propagate(status);
  if (Status status = checkFields(schedule); !status) return propagate(status);
  return schedule;
}

} // namespace tilewright
