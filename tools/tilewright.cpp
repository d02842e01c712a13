// tilewright: one command for everything a person does with Tilewright.
#include "bench/Stderr.h"
#include "commands/Commands.h"
#include "commands/Console.h"
#include "tilewright/Environment.h"
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iostream>
#include <span>

namespace {

/// CLI11 calls the value of `--name=` missing, and says that a subcommand is required where one is misspelt, without
/// naming it.
std::string describe(const CLI::ParseError &error, const CLI::App &app, std::span<char *> arguments) {
  for (std::string_view argument : arguments) {
    std::string_view name = argument.substr(0, argument.size() - argument.ends_with('='));
    if (name != argument && error.get_name() == "ArgumentMismatch" &&
        std::string_view(error.what()).starts_with(fmt::format("{}:", name)))
      return fmt::format("{}: expected a value, found an empty text", name);
  }
  const CLI::App *innermost = &app;
  while (!innermost->get_subcommands().empty())
    innermost = innermost->get_subcommands().front();
  std::vector<std::string> rest = innermost->remaining(true), known;
  if (error.get_name() != "RequiredError" || rest.empty()) return error.what();
  for (const CLI::App *subcommand :
       innermost->get_subcommands([](const CLI::App *command) { return !command->get_group().empty(); }))
    known.push_back(subcommand->get_name());
  return fmt::format("unknown subcommand '{}'; expected one of {}", rest.front(), fmt::join(known, ", "));
}

} // namespace

int main(int argc, char **argv) {
  using namespace tilewright::tool;
  CLI::App app("Tilewright compiles attention: state a problem, get a kernel made for exactly that problem.",
               "tilewright");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every subcommand");
  app.set_version_flag("--version", TILEWRIGHT_VERSION);
  app.footer("`tilewright SUBCOMMAND --help` explains each with examples.\n\nENVIRONMENT\n" +
             tilewright::environmentHelp());
  int exitCode = kSuccess;
  addRunCommand(app, exitCode);
  addCompileCommand(app, exitCode);
  addTuneCommand(app, exitCode);
  addTunedCommand(app, exitCode);
  addBenchCommand(app, exitCode);
  addCacheCommand(app, exitCode);
  addDoctorCommand(app, exitCode);
  addTrainCommand(app, exitCode);
  addSampleCommand(app, exitCode);
  addLaunchCommand(app, exitCode);
  addPlanCommand(app, exitCode);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &help) {
    exitCode = app.exit(help);
  } catch (const CLI::ParseError &error) {
    tilewright::toStderr("tilewright: {}\n  hint: `tilewright{} --help` lists the options\n",
                         describe(error, app, {argv, argv + argc}),
                         app.get_subcommands().empty() ? "" : " " + app.get_subcommands().front()->get_name());
    return kError;
  } catch (const std::exception &error) { // out of memory, say: never a crash
    tilewright::toStderr("tilewright: {}\n", error.what());
    return kError;
  }
  // A script reads stdout: results that did not get there are a failure.
  std::cout.flush(); // help goes there
  if (std::fflush(stdout) != 0 || std::ferror(stdout) || !std::cout) {
    tilewright::toStderr("tilewright: output: cannot write to standard output: {}\n", std::strerror(errno));
    return kError;
  }
  return exitCode;
}
