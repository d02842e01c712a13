// `tilewright launch`: the ranks of a distributed job on this machine.
#include "../bench/Stderr.h"
#include "Commands.h"
#include "Console.h"
#include "OptionChecks.h"
#include "RankLauncher.h"
#include <fmt/format.h>

namespace tilewright::tool {

void addLaunchCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("launch", "Start the ranks of a distributed job on this machine");
  auto options = std::make_shared<LaunchOptions>();
  command->add_option("-n,--ranks", options->ranks, "How many")->required()->check(CLI::Range(1, 4096));
  command->add_option("--port", options->port, "Where rank 0 listens (default: a free port)")
      ->check(CLI::Range(1, 65535));
  command->add_option("--grace", options->graceSeconds, "Seconds from SIGTERM to SIGKILL")
      ->check(numberFrom(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("command", options->command, "What each rank runs, after --")->required();
  command->footer(
      "\nEvery line comes with its rank. When a rank fails, the others are ended, and the exit code is the failed "
      "rank's.\n\nEXAMPLES\n  tilewright launch -n 4 -- ./my-training --steps 100\n"
      "  tilewright launch -n 2 --port 29500 -- sh -c 'echo I am $RANK of $WORLD_SIZE'\n");
  command->callback([options, &exitCode] {
    Expected<LaunchResult> result = launchRanks(*options);
    if (!result) {
      exitCode = reportError(result.error());
      return;
    }
    exitCode = result->exitCode;
    if (!result->failure.empty()) toStderr("tilewright: launch: {}\n", result->failure);
  });
}

} // namespace tilewright::tool
