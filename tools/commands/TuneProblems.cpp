#include "TuneProblems.h"
#include "tilewright/tensor/Npy.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tilewright::tool {
namespace {

/// The file of the table NAME among NAME=FILE texts; empty where there is none.
std::string fileOf(const std::string &name, const std::vector<std::string> &tables) {
  for (const std::string &text : tables)
    if (text.starts_with(name + "=")) return text.substr(name.size() + 1);
  return {};
}

/// Files and contents of the tables that the problem reads.
Status addTables(tune::TuneProblem &stated, const std::vector<std::string> &files) {
  for (const TableSpec &spec : stated.problem.tables) {
    const std::string file = fileOf(spec.name, files);
    if (file.empty())
      return fail(Stage::Input, fmt::format("table '{}' is read by an expression but not given", spec.name),
                  fmt::format("add --table {}=FILE.npy", spec.name));
    Expected<Table> table = readTable(file);
    if (!table) return propagate(table);
    if (Status status = table->check(spec, stated.problem); !status) return status;
    stated.tableFiles.push_back(file);
    stated.tables.push_back(std::move(*table));
  }
  return {};
}

Expected<tune::TuneProblem> problemOfOptions(const ProblemOptions &options) {
  Expected<ProblemInputs> inputs = makeInputs(options, false);
  if (!inputs) return propagate(inputs);
  tune::TuneProblem stated{inputs->problem, {}, {}};
  if (Status status = addTables(stated, options.tables); !status) return propagate(status);
  return stated;
}

/// Whether a quotation that the line opens is never closed.
bool endsInQuotation(const std::string &line) {
  char open = 0;
  for (char c : line)
    if (open ? c == open : c == '\'' || c == '"') open = open ? 0 : c;
  return open != 0;
}

Expected<tune::TuneProblem> problemOfLine(const std::string &line, const std::vector<std::string> &tables) {
  if (line.starts_with("-")) {
    if (endsInQuotation(line)) return fail(Stage::Input, "a quotation mark is not closed");
    ProblemOptions options;
    CLI::App app;
    options.addTo(app, false);
    try {
      app.parse(line);
    } catch (const CLI::ParseError &error) {
      return fail(Stage::Input, error.what(), "a line of options looks as on the command line: --heads 8:2 --seq 2048");
    }
    if (app.count("--target"))
      return fail(Stage::Input, "--target: all problems are tuned for one target, which is stated beside --problems");
    return problemOfOptions(options);
  }
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded())
    return fail(Stage::Input, "expected a JSON object or options",
                "TILEWRIGHT_RECORD=FILE writes such a file; a line may also be --heads 8:2 --seq 2048");
  Expected<Problem> problem = problemFromJson(json);
  if (!problem) return propagate(problem);
  tune::TuneProblem stated{std::move(*problem), {}, {}};
  if (Status status = addTables(stated, tables); !status) return propagate(status);
  return stated;
}

/// Whether tuning `other` tunes `problem` as well.
bool covers(const tune::TuneProblem &other, const tune::TuneProblem &problem) {
  if (other.tableFiles != problem.tableFiles) return false;
  Problem forward = other.problem;
  forward.direction = Direction::Forward;
  return other.problem == problem.problem || forward == problem.problem;
}

} // namespace

Expected<std::vector<tune::TuneProblem>> statedProblem(const ProblemOptions &options) {
  Expected<tune::TuneProblem> stated = problemOfOptions(options);
  if (!stated) return propagate(stated);
  std::vector<tune::TuneProblem> problems;
  problems.push_back(std::move(*stated));
  return problems;
}

Expected<std::vector<tune::TuneProblem>> problemsOfFile(const std::string &path,
                                                        const std::vector<std::string> &tables) {
  std::ifstream file(path);
  if (!file) return fail(Stage::Input, fmt::format("--problems {}: cannot read: {}", path, std::strerror(errno)));
  std::vector<tune::TuneProblem> problems;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    Expected<tune::TuneProblem> problem =
        problemOfLine(line.substr(first, line.find_last_not_of(" \t\r") + 1 - first), tables);
    if (!problem) {
      problem.error().message = fmt::format("{}:{}: {}", path, number, problem.error().message);
      return propagate(problem);
    }
    if (std::ranges::any_of(problems, [&](const auto &known) { return covers(known, *problem); })) continue;
    std::erase_if(problems, [&](const auto &known) { return covers(*problem, known); });
    problems.push_back(std::move(*problem));
  }
  if (problems.empty()) return fail(Stage::Input, fmt::format("--problems {}: no problem in it", path));
  return problems;
}

} // namespace tilewright::tool
