#include "JsonObject.h"
#include "ScheduleLimits.h"
#include "ScheduleNames.h"
#include <charconv>
#include <fmt/format.h>

namespace tilewright {

namespace {

template <class T> bool parseNumber(std::string_view text, T &value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Sets one field; the ranges are checkFields()'s.
Status setField(std::string_view field, std::string_view value, Schedule &schedule) {
  struct {
    std::string_view name;
    int Schedule::*member;
  } const integers[] = {{"tile_q", &Schedule::tileQ},
                        {"tile_kv", &Schedule::tileKV},
                        {"stages", &Schedule::stages},
                        {"warps", &Schedule::warps},
                        {"column_warps", &Schedule::columnWarps},
                        {"blocks_per_sm", &Schedule::blocksPerSM},
                        {"split_kv", &Schedule::splitKV}};
  for (const auto &[name, member] : integers) {
    if (field != name) continue;
    if (parseNumber(value, schedule.*member)) return {};
    return fail(Stage::Input, fmt::format("schedule: {}: expected an integer, found \"{}\"", field, value));
  }
  if (field == "order") {
    auto order = parseOrder(value);
    if (!order) return fail(Stage::Input, fmt::format("schedule: order: {}", order.error().message));
    schedule.order = *order;
    return {};
  }
  if (field == "overlap") {
    auto overlap = parseOverlap(value);
    if (!overlap) return fail(Stage::Input, fmt::format("schedule: overlap: {}", overlap.error().message));
    schedule.overlap = *overlap;
    return {};
  }
  if (field == "pack_heads") {
    if (value != "true" && value != "false")
      return fail(Stage::Input, fmt::format("schedule: pack_heads: expected true or false, found \"{}\"", value));
    schedule.packHeads = value == "true";
    return {};
  }
  if (field == "rescale_threshold") {
    if (parseNumber(value, schedule.rescaleThreshold)) return {};
    return fail(Stage::Input, fmt::format("schedule: rescale_threshold: expected a number, found \"{}\"", value));
  }
  return fail(Stage::Input, fmt::format("schedule: unknown field \"{}\"", field),
              "fields: tile_q, tile_kv, stages, warps, column_warps, blocks_per_sm, order, overlap, split_kv, "
              "pack_heads, rescale_threshold; with forward., delta., dq., dkv. or fused. before it a field counts for "
              "that kernel alone; backward=two_kernel or backward=fused chooses the "
              "gradients' kernels");
}

std::string_view trimmed(std::string_view text) {
  size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

} // namespace

Expected<ScheduleOverrides> ScheduleOverrides::parse(std::string_view text) {
  ScheduleOverrides overrides;
  if (trimmed(text).empty()) return overrides;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    std::string_view setting = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    size_t equals = setting.find('=');
    if (equals == std::string_view::npos)
      return fail(Stage::Input, fmt::format("schedule: expected field=value, found \"{}\"", setting),
                  "for example tile_q=128,tile_kv=64,dkv.stages=2");
    std::string_view key = trimmed(setting.substr(0, equals)), value = trimmed(setting.substr(equals + 1));
    if (key == "backward") {
      auto strategy = parseBackward(value);
      if (!strategy)
        return fail(Stage::Input, fmt::format("schedule: backward: {}", strategy.error().message),
                    strategy.error().hint);
      if (overrides.strategy) return fail(Stage::Input, "schedule: backward is set twice");
      overrides.strategy = *strategy;
      continue;
    }
    std::string_view field = key;
    if (size_t dot = key.find('.'); dot != std::string_view::npos) {
      auto role = parseKernelRole(key.substr(0, dot));
      if (!role) return fail(Stage::Input, fmt::format("schedule: {}: before the dot: {}", key, role.error().message));
      if (*role == KernelRole::Convert)
        return fail(Stage::Input, fmt::format("schedule: {}: convert follows fused and has no fields of its own", key),
                    fmt::format("set fused.{}", key.substr(dot + 1)));
      if (*role == KernelRole::Merge)
        return fail(Stage::Input, fmt::format("schedule: {}: merge follows forward and has no fields of its own", key),
                    fmt::format("set forward.{}", key.substr(dot + 1)));
      field = key.substr(dot + 1);
    }
    // Applied to a valid schedule, one setting is all that checkFields can find wrong.
    Schedule scratch;
    if (Status status = setField(field, value, scratch); !status) return propagate(status);
    if (Status status = checkFields(scratch); !status) return propagate(status);
    if (!overrides.fields.emplace(key, value).second)
      return fail(Stage::Input, fmt::format("schedule: {} is set twice", key));
  }
  if (Status status = overrides.settleStrategy(); !status) return propagate(status);
  return overrides;
}

Status ScheduleOverrides::settleStrategy() {
  for (const auto &[key, value] : fields) {
    auto role = parseKernelRole(std::string_view(key).substr(0, key.find('.')));
    if (!role || *role == KernelRole::Forward || *role == KernelRole::Delta) continue;
    Backward implied = *role == KernelRole::Fused ? Backward::Fused : Backward::TwoKernel;
    if (!strategy) strategy = implied;
    if (*strategy != implied)
      return fail(Stage::Input,
                  fmt::format("schedule: {}: backward={} has no {} kernel", key, toString(*strategy), toString(*role)),
                  "fields of dq and dkv go with backward=two_kernel, those of fused with backward=fused");
  }
  return {};
}

Expected<ScheduleOverrides> ScheduleOverrides::fromJson(const nlohmann::json &json) {
  if (!json.is_object())
    return fail(Stage::Input, fmt::format("schedule: expected an object, found {}", describeJson(json)),
                R"(for example {"tile_q": 128, "dkv.tile_kv": 64})");
  std::string text;
  for (const auto &[key, value] : json.items()) {
    const bool plain = key.find_first_of(",=") == std::string::npos;
    if (!plain || !(value.is_string() || value.is_number()))
      return fail(Stage::Input,
                  fmt::format("schedule: {}: expected a field with a number or a name, found {}", key,
                              describeJson(value)));
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", key,
                        value.is_string() ? value.get_ref<const std::string &>() : value.dump());
  }
  return parse(text);
}

Status ScheduleOverrides::apply(KernelRole role, Schedule &schedule) const {
  std::string prefix = std::string(toString(role)) + ".";
  for (bool isSpecific : {false, true})
    for (const auto &[key, value] : fields) {
      bool hasRole = key.find('.') != std::string::npos;
      if (hasRole != isSpecific || (hasRole && !key.starts_with(prefix))) continue;
      std::string_view field = hasRole ? std::string_view(key).substr(prefix.size()) : std::string_view(key);
      if (Status status = setField(field, value, schedule); !status) return status;
    }
  return {};
}

} // namespace tilewright
