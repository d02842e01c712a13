// `tilewright tuned`: what `tilewright tune` has measured, as a list, out of the store and into another.
#include "../bench/Stderr.h"
#include "../tune/TuneReport.h"
#include "Commands.h"
#include "Console.h"
#include "OptionChecks.h"
#include "tilewright/CodeGenerator.h"
#include "tilewright/Environment.h"
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tilewright::tool {
namespace {

Expected<std::string> cacheFolder() {
  Expected<Environment> environment = Environment::ofProcess();
  if (!environment) return propagate(environment);
  std::string folder = environment->cacheDirectory();
  if (folder.empty())
    return fail(Stage::Cache, "there is no cache folder: neither HOME nor XDG_CACHE_HOME is set",
                "let TILEWRIGHT_CACHE_DIR name a folder");
  return folder;
}

std::shared_ptr<Log> log() { return std::make_shared<Log>(logToStderr(false)); }

int list(bool json) {
  Expected<std::string> folder = cacheFolder();
  if (!folder) return reportError(folder.error());
  auto store = TunedStore::openExisting(*folder, log());
  std::map<std::tuple<TuningEnvironment, std::string, KernelRole>, std::vector<TunedCandidate>> groups;
  if (store)
    for (TunedCandidate &c : store->all())
      groups[{c.environment, tune::problemText(c.problem), c.role}].push_back(std::move(c));
  nlohmann::json rows = nlohmann::json::array();
  for (const auto &[key, candidates] : groups) {
    const auto &[environment, name, role] = key;
    // Without this target's limits at hand the default is unknown: the fastest stands for the winner.
    const TunedCandidate *best = winnerOf(candidates, candidates.front().schedule);
    const bool current = environment.generator == kGeneratorId;
    if (json)
      rows.push_back({{"target", environment.target},
                      {"device", environment.device},
                      {"policy", environment.policy},
                      {"current", current},
                      {"problem", candidates.front().problem},
                      {"role", toString(role)},
                      {"candidates", candidates.size()},
                      {"best_ms", best ? nlohmann::json(best->ms) : nlohmann::json()},
                      {"best", best ? nlohmann::json(best->schedule) : nlohmann::json()}});
    else
      fmt::print("{:<10} {:<8} {:<48} {:>4} candidates, {}{}\n",
                 environment.target.substr(0, environment.target.find('\n')), toString(role), name, candidates.size(),
                 best ? fmt::format("best {:.4f} ms", best->ms) : std::string("none right"),
                 current ? "" : " (of another version: not used)");
  }
  const std::string path = fmt::format("{}/{}", *folder, TunedStore::kFileName);
  if (json)
    fmt::print("{}\n",
               nlohmann::json{{"path", path}, {"candidates", store ? store->count() : 0}, {"kernels", rows}}.dump());
  else
    fmt::print("{} candidates in {}\n", store ? store->count() : 0, path);
  return kSuccess;
}

int exportTo(const std::string &path) {
  Expected<std::string> folder = cacheFolder();
  if (!folder) return reportError(folder.error());
  std::ostringstream lines;
  if (auto store = TunedStore::openExisting(*folder, log()))
    if (Status status = store->exportLines(lines); !status) return reportError(status.error());
  if (path == "-") {
    fmt::print("{}", lines.str());
    return kSuccess;
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << lines.str();
  file.close();
  if (!file)
    return reportError({Stage::Output, fmt::format("{}: cannot write: {}", path, std::strerror(errno)), "", {}});
  return kSuccess;
}

int importFrom(const std::string &path) {
  Expected<std::string> folder = cacheFolder();
  if (!folder) return reportError(folder.error());
  std::ifstream file(path, std::ios::binary);
  if (!file) return reportError({Stage::Input, fmt::format("{}: cannot read: {}", path, std::strerror(errno)), "", {}});
  auto store = TunedStore::openOrCreate(*folder, log());
  if (!store) return reportError(store.error());
  Expected<ImportedLines> imported = (*store)->importLines(file, path);
  if (!imported) return reportError(imported.error());
  fmt::print("{} candidates taken over\n", imported->taken);
  if (imported->refused == 0) return kSuccess;
  toStderr("tilewright: warning: {} lines are not candidates, the first: {}\n", imported->refused,
           imported->firstRefusal);
  return imported->taken ? kSuccess : kWrongResult;
}

int clear() {
  Expected<std::string> folder = cacheFolder();
  if (!folder) return reportError(folder.error());
  size_t removed = 0;
  if (TunedStore::openExisting(*folder, log())) {
    auto store = TunedStore::openOrCreate(*folder, log());
    if (!store) return reportError(store.error());
    Expected<size_t> count = (*store)->clear();
    if (!count) return reportError(count.error());
    removed = *count;
  }
  fmt::print("{} candidates removed\n", removed);
  return kSuccess;
}

} // namespace

void addTunedCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("tuned", "What `tilewright tune` has measured: list, export, import");
  command->require_subcommand(1);
  auto json = std::make_shared<bool>(false);
  CLI::App *lists = command->add_subcommand("list", "Each kernel of each problem, with its best time");
  lists->add_flag("--json", *json, "One JSON object on stdout");
  lists->callback([json, &exitCode] { exitCode = list(*json); });
  auto path = std::make_shared<std::string>();
  CLI::App *exports = command->add_subcommand("export", "Write every candidate as a line of JSON");
  exports->add_option("file", *path, "File to write; - is standard output")->required()->check(notEmpty());
  exports->callback([path, &exitCode] { exitCode = exportTo(*path); });
  CLI::App *imports = command->add_subcommand("import", "Take over candidates that another cache folder exported");
  imports->add_option("file", *path, "File to read")->required()->check(regularFile());
  imports->callback([path, &exitCode] { exitCode = importFrom(*path); });
  CLI::App *clears = command->add_subcommand("clear", "Forget all of it");
  clears->callback([&exitCode] { exitCode = clear(); });
  command->footer("\nEXAMPLES\n"
                  "  tilewright tuned list\n"
                  "  tilewright tuned export tuned.jsonl      # on a machine with the GPU; then, on its likes:\n"
                  "  tilewright tuned import tuned.jsonl\n");
}

} // namespace tilewright::tool
