#include "PlanNames.h"
#include "plan/JsonObject.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::dist {
namespace {

using Json = nlohmann::json;

Expected<std::vector<int64_t>> numbersFromJson(const Json &json) {
  std::vector<int64_t> numbers;
  if (!json.is_array())
    return fail(Stage::Input, fmt::format("expected an array of integers, found {}", describeJson(json)));
  for (const Json &number : json) {
    if (!number.is_number_integer() || (number.is_number_unsigned() && number.get<uint64_t>() > uint64_t{INT64_MAX}))
      return fail(Stage::Input, fmt::format("expected integers within 64 bits, found {}", describeJson(number)));
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

/// The array under `key`, each entry read by `read(entry, place)`.
template <class T, class Read> Status readList(JsonObject &object, const char *key, std::vector<T> &list, Read read) {
  const Json *array = object.find(key);
  if (!array) return {};
  if (!array->is_array())
    return fail(Stage::Input,
                fmt::format("{}: expected an array, found {}", object.placeOf(key), describeJson(*array)));
  for (size_t i = 0; i < array->size(); ++i) {
    Expected<T> entry = read((*array)[i], fmt::format("{}[{}]", object.placeOf(key), i));
    if (!entry) return propagate(entry);
    list.push_back(std::move(*entry));
  }
  return {};
}

template <class Enum, size_t N>
void readEnum(JsonObject &object, const char *key, Enum &value, const std::array<std::string_view, N> &names) {
  object.readName(key, value, [&](std::string_view text) { return parseName<Enum>(names, text); });
}

Expected<PlanParameter> parameterFromJson(const Json &json, const std::string &place) {
  PlanParameter parameter;
  JsonObject object(json, place);
  object.read("name", parameter.name);
  if (const Json *shape = object.find("shape")) object.accept("shape", parameter.shape, numbersFromJson(*shape));
  object.read("weight_decay", parameter.weightDecay);
  object.read("begin", parameter.begin);
  if (Status status = object.finish(); !status) return propagate(status);
  return parameter;
}

Expected<PlanBuffer> bufferFromJson(const Json &json, const std::string &place) {
  PlanBuffer buffer;
  JsonObject object(json, place);
  object.read("name", buffer.name);
  readEnum(object, "category", buffer.category, kCategoryNames);
  readEnum(object, "type", buffer.type, kTypeNames);
  if (const Json *elements = object.find("elements"))
    object.accept("elements", buffer.elements, numbersFromJson(*elements));
  if (Status status = object.finish(); !status) return propagate(status);
  return buffer;
}

Expected<Use> useFromJson(const Json &json, const std::string &place) {
  Use use;
  JsonObject object(json, place);
  readEnum(object, "access", use.access, kAccessNames);
  object.read("buffer", use.span.buffer);
  object.read("begin", use.span.begin);
  object.read("count", use.span.count);
  readEnum(object, "part", use.span.part, kPartNames);
  if (Status status = object.finish(); !status) return propagate(status);
  return use;
}

Expected<Wait> waitFromJson(const Json &json, const std::string &place) {
  Wait wait;
  JsonObject object(json, place);
  object.read("op", wait.op);
  object.read("previous_step", wait.previousStep);
  if (Status status = object.finish(); !status) return propagate(status);
  return wait;
}

Expected<StepOp> opFromJson(const Json &json, const std::string &place) {
  StepOp op;
  JsonObject object(json, place);
  object.read("name", op.name);
  readEnum(object, "kind", op.kind, kOpNames);
  readEnum(object, "lane", op.lane, kLaneNames);
  object.read("rank", op.rank);
  if (Status status = readList(object, "uses", op.uses, useFromJson); !status) return propagate(status);
  if (Status status = readList(object, "waits", op.waits, waitFromJson); !status) return propagate(status);
  object.read("root", op.root);
  object.read("peer", op.peer);
  object.read("group", op.group);
  object.read("parameter", op.parameter);
  if (Status status = object.finish(); !status) return propagate(status);
  return op;
}

Json opToJson(const StepOp &op) {
  Json uses = Json::array(), waits = Json::array();
  for (const Use &use : op.uses)
    uses.push_back({{"access", nameOf(kAccessNames, use.access)},
                    {"buffer", use.span.buffer},
                    {"begin", use.span.begin},
                    {"count", use.span.count},
                    {"part", nameOf(kPartNames, use.span.part)}});
  for (const Wait &wait : op.waits)
    waits.push_back({{"op", wait.op}, {"previous_step", wait.previousStep}});
  return {{"name", op.name},
          {"kind", toString(op.kind)},
          {"lane", toString(op.lane)},
          {"rank", op.rank},
          {"uses", uses},
          {"waits", waits},
          {"root", op.root},
          {"peer", op.peer},
          {"group", op.group},
          {"parameter", op.parameter}};
}

} // namespace

void to_json(Json &json, const StepPlan &plan) {
  Json parameters = Json::array(), buffers = Json::array(), ops = Json::array();
  for (const PlanParameter &p : plan.parameters)
    parameters.push_back({{"name", p.name}, {"shape", p.shape}, {"weight_decay", p.weightDecay}, {"begin", p.begin}});
  for (const PlanBuffer &b : plan.buffers)
    buffers.push_back({{"name", b.name},
                       {"category", toString(b.category)},
                       {"type", nameOf(kTypeNames, b.type)},
                       {"elements", b.elements}});
  for (const StepOp &op : plan.ops)
    ops.push_back(opToJson(op));
  json = Json{{"strategy", plan.strategy}, {"world_size", plan.worldSize}, {"accumulation", plan.accumulation},
              {"parameters", parameters},  {"buffers", buffers},           {"ops", ops}};
}

Expected<StepPlan> stepPlanFromJson(const Json &json) {
  StepPlan plan;
  JsonObject object(json, "plan");
  object.read("strategy", plan.strategy);
  object.read("world_size", plan.worldSize);
  object.read("accumulation", plan.accumulation);
  if (Status s = readList(object, "parameters", plan.parameters, parameterFromJson); !s) return propagate(s);
  if (Status s = readList(object, "buffers", plan.buffers, bufferFromJson); !s) return propagate(s);
  if (Status s = readList(object, "ops", plan.ops, opFromJson); !s) return propagate(s);
  if (Status s = object.finish(); !s) return propagate(s);
  // What printing relies on; everything else is the checker's to judge.
  if (plan.worldSize < 1)
    return fail(Stage::Input, fmt::format("plan.world_size: expected at least 1, found {}", plan.worldSize));
  for (const PlanBuffer &buffer : plan.buffers)
    if (buffer.elements.size() != 1 && buffer.elements.size() != static_cast<size_t>(std::max(plan.worldSize, 0)))
      return fail(Stage::Input,
                  fmt::format("plan: buffer {}: expected one number of elements or one a rank ({}), found {}",
                              buffer.name, plan.worldSize, buffer.elements.size()));
  for (const StepOp &op : plan.ops) {
    for (const Use &use : op.uses)
      if (use.span.buffer < 0 || use.span.buffer >= static_cast<int>(plan.buffers.size()))
        return fail(Stage::Input, fmt::format("plan: op {} uses buffer {}, but there are {}", op.name, use.span.buffer,
                                              plan.buffers.size()));
    for (const Wait &wait : op.waits)
      if (wait.op < 0 || wait.op >= static_cast<int>(plan.ops.size()))
        return fail(Stage::Input,
                    fmt::format("plan: op {} waits for op {}, but there are {}", op.name, wait.op, plan.ops.size()));
  }
  return plan;
}

} // namespace tilewright::dist
