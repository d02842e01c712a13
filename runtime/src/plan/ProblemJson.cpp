#include "../expr/Vocabulary.h"
#include "JsonObject.h"
#include "tilewright/plan/Problem.h"
#include <fmt/format.h>

namespace tilewright {

namespace {

Expected<Direction> parseDirection(std::string_view text) {
  if (text == "forward") return Direction::Forward;
  if (text == "backward") return Direction::Backward;
  return fail(Stage::Input, fmt::format("expected forward or backward, found \"{}\"", text));
}

Expected<bool> parseElementIsFloat(std::string_view text) {
  if (text == "int32") return false;
  if (text == "float32") return true;
  return fail(Stage::Input, fmt::format("expected int32 or float32, found \"{}\"", text));
}

Expected<Window> windowFromJson(const nlohmann::json &json) {
  if (!json.is_array() || json.size() != 2 || !json[0].is_number_integer() || !json[1].is_number_integer())
    return fail(Stage::Input, "expected two integers, [left, right], -1 for unbounded");
  Window window;
  for (auto [side, value] : {std::pair{&window.left, &json[0]}, std::pair{&window.right, &json[1]}}) {
    // Anything beyond int64 is beyond every sequence too.
    bool isHuge = value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX};
    *side = isHuge ? INT64_MAX : value->get<int64_t>();
  }
  return window;
}

Expected<std::vector<TableAxis>> axesFromJson(const nlohmann::json &json) {
  std::vector<TableAxis> axes;
  if (!json.is_array()) return fail(Stage::Input, "expected an array such as [\"b\", \"k\"]");
  for (const nlohmann::json &name : json) {
    auto axis = name.is_string() ? expr::axisNamed(name.get_ref<const std::string &>()) : std::nullopt;
    if (!axis)
      return fail(Stage::Input, fmt::format("expected \"q\", \"k\", \"h\" or \"b\", found {}", describeJson(name)));
    axes.push_back(*axis);
  }
  return axes;
}

Expected<TableSpec> tableFromJson(const nlohmann::json &json, const std::string &place) {
  TableSpec table;
  JsonObject object(json, place);
  object.read("name", table.name);
  object.readName("type", table.isFloat, parseElementIsFloat);
  if (const nlohmann::json *axes = object.find("axes")) object.accept("axes", table.axes, axesFromJson(*axes));
  if (Status status = object.finish(); !status) return propagate(status);
  return table;
}

} // namespace

void to_json(nlohmann::json &json, const Problem &problem) {
  nlohmann::json tables = nlohmann::json::array();
  for (const TableSpec &table : problem.tables) {
    nlohmann::json axes = nlohmann::json::array();
    for (TableAxis axis : table.axes)
      axes.push_back(expr::nameOf(axis));
    tables.push_back({{"name", table.name}, {"type", table.isFloat ? "float32" : "int32"}, {"axes", axes}});
  }
  json = nlohmann::json{
      {"batch", problem.batch},
      {"heads_q", problem.headsQ},
      {"heads_kv", problem.headsKV},
      {"seq_q", problem.seqQ},
      {"seq_kv", problem.seqKV},
      {"scale", problem.scale ? nlohmann::json(*problem.scale) : nlohmann::json(nullptr)},
      {"dim_qk", problem.dimQK},
      {"dim_v", problem.dimV},
      {"dtype", toString(problem.dtype)},
      {"direction", problem.direction == Direction::Forward ? "forward" : "backward"},
      {"causal", problem.causal},
      {"window", nlohmann::json::array({problem.window.left, problem.window.right})},
      {"softcap", problem.softcap},
      {"mask", problem.mask},
      {"score", problem.score},
      {"tables", std::move(tables)},
      {"layout", toString(problem.layout)},
  };
}

Expected<Problem> problemFromJson(const nlohmann::json &json) {
  Problem problem;
  JsonObject object(json, "problem");
  object.read("batch", problem.batch);
  object.read("heads_q", problem.headsQ);
  object.read("heads_kv", problem.headsKV);
  object.read("seq_q", problem.seqQ);
  object.read("seq_kv", problem.seqKV);
  object.read("scale", problem.scale);
  object.read("dim_qk", problem.dimQK);
  object.read("dim_v", problem.dimV);
  object.readName("dtype", problem.dtype, parseDType);
  object.readName("direction", problem.direction, parseDirection);
  object.read("causal", problem.causal);
  if (const nlohmann::json *window = object.find("window"))
    object.accept("window", problem.window, windowFromJson(*window));
  object.read("softcap", problem.softcap);
  object.read("mask", problem.mask);
  object.read("score", problem.score);
  if (const nlohmann::json *tables = object.find("tables")) {
    if (!tables->is_array())
      object.refuse("tables", fmt::format("expected an array, found {}", describeJson(*tables)));
    else
      for (size_t i = 0; i < tables->size(); ++i) {
        auto table = tableFromJson((*tables)[i], fmt::format("problem.tables[{}]", i));
        if (!table) return propagate(table);
        problem.tables.push_back(std::move(*table));
      }
  }
  object.readName("layout", problem.layout, parseLayout);
  if (Status status = object.finish(); !status) return propagate(status);
  if (Status status = problem.validate(); !status) return propagate(status);
  return problem;
}

} // namespace tilewright
