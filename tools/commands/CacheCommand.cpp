// `tilewright cache`: looks after the folder of compiled kernels.
#include "Commands.h"
#include "Console.h"
#include "tilewright/Environment.h"
#include "tilewright/cache/CacheMaintenance.h"
#include <ctime>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::tool {
namespace {

struct CacheOptions {
  std::string directory, bundle;
  std::vector<std::string> keys;
  std::string maxBytes = "0";
  bool json = false;
};

Expected<std::string> directoryOf(const CacheOptions &options) {
  if (!options.directory.empty()) return options.directory;
  Expected<Environment> environment = Environment::ofProcess();
  if (!environment) return propagate(environment);
  std::string directory = environment->cacheDirectory();
  if (directory.empty())
    return fail(Stage::Cache, "no cache folder: neither TILEWRIGHT_CACHE_DIR nor XDG_CACHE_HOME nor HOME is set",
                "set TILEWRIGHT_CACHE_DIR, or give --dir");
  return directory;
}

std::string when(int64_t seconds) {
  return seconds ? fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(static_cast<std::time_t>(seconds))) : "-";
}

void emit(const CacheOptions &options, const nlohmann::json &json, const std::string &text) {
  if (options.json)
    fmt::print("{}\n", json.dump());
  else
    fmt::print("{}", text);
}

Status info(const CacheOptions &options, const std::string &directory) {
  Expected<CacheInfo> i = cacheInfo(directory);
  if (!i) return propagate(i);
  emit(options,
       {{"directory", i->directory},
        {"exists", i->exists},
        {"entries", i->entries},
        {"bytes", i->bytes},
        {"temporary_files", i->temporaryFiles},
        {"failed_sources", i->failedSources},
        {"foreign_files", i->foreignFiles}},
       fmt::format("{}{}\n{} kernels, {}; last used {}\n{} temporary files, {} sources that did not compile, {} files "
                   "of others\n",
                   i->directory, i->exists ? "" : " (does not exist yet)", i->entries,
                   formatBytes(static_cast<double>(i->bytes)), when(i->newestUse), i->temporaryFiles, i->failedSources,
                   i->foreignFiles));
  return {};
}

Status list(const CacheOptions &options, const std::string &directory) {
  Expected<std::vector<CacheListing>> all = cacheList(directory);
  if (!all) return propagate(all);
  nlohmann::json json = nlohmann::json::array();
  std::string text;
  for (const CacheListing &entry : *all) {
    std::string symbol = entry.entry ? entry.entry->symbol : "damaged: " + entry.damage;
    json.push_back({{"key", entry.key},
                    {"path", entry.path},
                    {"bytes", entry.bytes},
                    {"last_used", entry.lastUsed},
                    {"symbol", symbol},
                    {"damage", entry.damage}});
    text += fmt::format("{}  {:>10}  {}  {}\n", entry.key.substr(0, 16), formatBytes(static_cast<double>(entry.bytes)),
                        when(entry.lastUsed), symbol);
  }
  emit(options, json, text);
  return {};
}

nlohmann::json toJson(const Evicted &evicted) { return {{"kernels", evicted.entries}, {"bytes", evicted.bytes}}; }
std::string toText(const Evicted &evicted) {
  return fmt::format("removed {} kernels, {}\n", evicted.entries, formatBytes(static_cast<double>(evicted.bytes)));
}

Status clear(const CacheOptions &options, const std::string &directory) {
  Expected<Evicted> evicted = cacheClear(directory);
  if (!evicted) return propagate(evicted);
  emit(options, toJson(*evicted), toText(*evicted));
  return {};
}

Status prune(const CacheOptions &options, const std::string &directory) {
  std::string setting = "TILEWRIGHT_CACHE_MAX_BYTES=" + options.maxBytes; // the same spelling: 512M, 2G
  std::string_view entries[] = {setting};
  Expected<Environment> parsed = Environment::parse(entries);
  if (!parsed)
    return fail(Stage::Input,
                fmt::format("--max-bytes: expected a size such as 1000000, 512M or 2G, found '{}'", options.maxBytes));
  Expected<Evicted> evicted = cachePrune(directory, parsed->cacheMaxBytes);
  if (!evicted) return propagate(evicted);
  emit(options, toJson(*evicted), toText(*evicted));
  return {};
}

Status exportBundle(const CacheOptions &options, const std::string &directory) {
  Expected<int> copied = cacheExport(directory, options.bundle, options.keys);
  if (!copied) return propagate(copied);
  emit(options, {{"kernels", *copied}, {"bundle", options.bundle}},
       fmt::format("copied {} kernels to {}; use it with TILEWRIGHT_BUNDLES={}\n", *copied, options.bundle,
                   options.bundle));
  return {};
}

Status verify(const CacheOptions &options, const std::string &directory, int &exitCode) {
  Expected<CacheVerification> verification = cacheVerify(directory);
  if (!verification) return propagate(verification);
  nlohmann::json damages = nlohmann::json::array();
  std::string text;
  for (const CacheDamage &damage : verification->damages) {
    damages.push_back({{"path", damage.path}, {"what", damage.what}, {"remedy", damage.remedy}});
    text += fmt::format("{}: {}\n  {}\n", damage.path, damage.what, damage.remedy);
  }
  emit(options, {{"good", verification->good}, {"damaged", damages}},
       text + fmt::format("{} good, {} damaged\n", verification->good, verification->damages.size()));
  if (!verification->damages.empty()) exitCode = kWrongResult;
  return {};
}

} // namespace

void addCacheCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("cache", "Look after the folder of compiled kernels");
  command->require_subcommand(1);
  auto options = std::make_shared<CacheOptions>();
  auto add = [&](const char *name, const char *help,
                 std::function<Status(const CacheOptions &, const std::string &)> run) {
    CLI::App *sub = command->add_subcommand(name, help);
    sub->add_option("--dir", options->directory, "The cache folder (default: see `tilewright doctor`)");
    sub->add_flag("--json", options->json, "JSON on stdout");
    sub->callback([options, run, &exitCode] {
      Expected<std::string> directory = directoryOf(*options);
      Status status = directory ? run(*options, *directory) : Status(propagate(directory));
      if (!status) exitCode = reportError(status.error());
    });
    return sub;
  };
  add("info", "Where it is and how much it holds", info);
  add("list", "Its kernels, most recently used first", list);
  add("clear", "Remove every kernel", clear);
  add("prune", "Remove the least recently used kernels", prune)
      ->add_option("--max-bytes", options->maxBytes, "Size to shrink to: 1000000, 512M, 2G")
      ->required();
  CLI::App *sub = add("export", "Copy kernels to a bundle for machines without NVRTC", exportBundle);
  sub->add_option("bundle", options->bundle, "Folder of the bundle")->required();
  sub->add_option("--key", options->keys, "Only these kernels (default: all)");
  add("verify", "Read every file and report damage; exit code 1 if there is any",
      [&exitCode](const CacheOptions &o, const std::string &d) { return verify(o, d, exitCode); });
  command->footer("\nEXAMPLES\n  tilewright cache info\n  tilewright cache prune --max-bytes 512M\n"
                  "  tilewright cache export kernels/ && TILEWRIGHT_BUNDLES=kernels tilewright run\n");
}

} // namespace tilewright::tool
