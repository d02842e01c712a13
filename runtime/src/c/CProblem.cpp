#include "CProblem.h"
#include "CError.h"
#include "SizedStruct.h"
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

using namespace tilewright;

namespace tilewright::c {
namespace {

tw_problem defaultProblem() {
  const Problem problem;
  tw_problem made{};
  made.struct_size = sizeof(tw_problem);
  made.batch = problem.batch;
  made.heads_q = problem.headsQ;
  made.heads_kv = problem.headsKV;
  made.seq_q = problem.seqQ;
  made.seq_kv = problem.seqKV;
  made.dim_qk = problem.dimQK;
  made.dim_v = problem.dimV;
  made.window_left = problem.window.left;
  made.window_right = problem.window.right;
  made.scale = std::numeric_limits<double>::quiet_NaN();
  return made;
}

std::string textOf(const char *text) { return text ? text : ""; }

/// The tables that the expressions read, with the element types that the caller states.
Status readTables(const tw_problem &given, Problem &problem) {
  Expected<std::vector<TableSpec>> read = tablesRead(problem.mask, problem.score);
  if (!read) return propagate(read);
  if (given.table_count < 0 || (given.table_count > 0 && !given.tables))
    return fail(Stage::Input, fmt::format("tw_problem.tables: expected {} tables, found null", given.table_count));
  for (int32_t i = 0; i < given.table_count; ++i) {
    const tw_table_type &type = given.tables[i];
    bool found = false;
    for (TableSpec &spec : *read)
      if (type.name && spec.name == type.name) {
        spec.isFloat = type.is_float != 0;
        found = true;
      }
    if (!found)
      return fail(Stage::Input,
                  fmt::format("tw_problem.tables[{}]: no expression reads a table '{}'", i, textOf(type.name)));
  }
  for (const TableSpec &spec : *read) {
    bool stated = false;
    for (int32_t i = 0; i < given.table_count; ++i)
      stated |= spec.name == textOf(given.tables[i].name);
    if (!stated)
      return fail(Stage::Input, fmt::format("table '{}' is read by an expression but not among tables", spec.name),
                  "name it in tw_problem.tables with its element type; in Python: tables={\"" + spec.name +
                      "\": array}");
  }
  problem.tables = std::move(*read);
  return {};
}

Expected<nlohmann::json> parseJson(const char *what, const char *text) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception &error) {
    return fail(Stage::Input, fmt::format("{}: not JSON: {}", what, error.what()));
  }
}

} // namespace

Expected<Problem> problemOf(const tw_problem *given) {
  if (!given) return fail(Stage::Input, "problem: expected one, found null", "tw_problem_init() starts one");
  tw_problem stated = defaultProblem();
  if (Status status = take("tw_problem", given, stated); !status) return propagate(status);
  Problem problem;
  problem.batch = stated.batch;
  problem.headsQ = stated.heads_q;
  problem.headsKV = stated.heads_kv;
  problem.seqQ = stated.seq_q;
  problem.seqKV = stated.seq_kv;
  problem.dimQK = stated.dim_qk;
  problem.dimV = stated.dim_v;
  problem.direction = stated.gradients ? Direction::Backward : Direction::Forward;
  problem.causal = stated.causal != 0;
  problem.window = {stated.window_left, stated.window_right};
  problem.softcap = stated.softcap;
  if (!std::isnan(stated.scale)) problem.scale = stated.scale;
  problem.mask = textOf(stated.mask);
  problem.score = textOf(stated.score);
  if (stated.dtype) {
    Expected<DType> dtype = parseDType(stated.dtype);
    if (!dtype) return propagate(dtype);
    problem.dtype = *dtype;
  }
  if (stated.layout) {
    Expected<Layout> layout = parseLayout(stated.layout);
    if (!layout) return propagate(layout);
    problem.layout = *layout;
  }
  if (Status status = readTables(stated, problem); !status) return propagate(status);
  if (Status status = problem.validate(); !status) return propagate(status);
  return problem;
}

Expected<Problem> problemOf(const char *json) {
  if (!json) return fail(Stage::Input, "problem: expected JSON, found null");
  Expected<nlohmann::json> parsed = parseJson("problem", json);
  if (!parsed) return propagate(parsed);
  return problemFromJson(*parsed);
}

Expected<ScheduleOverrides> overridesOf(const char *schedule) {
  const std::string text = textOf(schedule);
  if (!text.starts_with('{')) return ScheduleOverrides::parse(text);
  Expected<nlohmann::json> parsed = parseJson("schedule", schedule);
  if (!parsed) return propagate(parsed);
  return ScheduleOverrides::fromJson(*parsed);
}

} // namespace tilewright::c

int tw_problem_init(tw_problem *problem, size_t struct_size) {
  return c::guarded([&]() -> Status {
    if (!problem || struct_size < sizeof(size_t) || struct_size > sizeof(tw_problem))
      return fail(Stage::Input, fmt::format("tw_problem_init: expected a tw_problem and its size, found {} and {}",
                                            problem ? "one" : "null", struct_size));
    const tw_problem made = c::defaultProblem();
    std::memcpy(problem, &made, struct_size);
    problem->struct_size = struct_size;
    return {};
  });
}
