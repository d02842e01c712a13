// tilewright: one command for everything a person does with Tilewright.
#include "commands/Commands.h"
#include "commands/Console.h"
#include "tilewright/Environment.h"
#include <exception>
#include <fmt/format.h>

int main(int argc, char **argv) {
  using namespace tilewright::tool;
  CLI::App app("Tilewright compiles attention: state a problem, get a kernel made for exactly that problem.", "tilewright");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of every subcommand");
  app.set_version_flag("--version", TILEWRIGHT_VERSION);
  app.footer("`tilewright SUBCOMMAND --help` explains each with examples.\n\nENVIRONMENT\n" + tilewright::environmentHelp());
  int exitCode = kSuccess;
  addRunCommand(app, exitCode);
  addCompileCommand(app, exitCode);
  addCacheCommand(app, exitCode);
  addDoctorCommand(app, exitCode);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &help) {
    return app.exit(help);
  } catch (const CLI::ParseError &error) {
    fmt::print(stderr, "tilewright: {}\n  hint: `tilewright{} --help` lists the options\n", error.what(),
               app.get_subcommands().empty() ? "" : " " + app.get_subcommands().front()->get_name());
    return kError;
  } catch (const std::exception &error) { // out of memory, say: never a crash
    fmt::print(stderr, "tilewright: {}\n", error.what());
    return kError;
  }
  return exitCode;
}
