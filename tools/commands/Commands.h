// The subcommands of `tilewright`. Each registers itself with the app and runs from CLI11's callback; what a callback
// returns through `exitCode` is the process's: 0 success, 1 a result that is not right, 2 an error.
#pragma once

#include <CLI/CLI.hpp>

namespace tilewright::tool {

enum ExitCode { kSuccess = 0, kWrongResult = 1, kError = 2 };

void addTuneCommand(CLI::App &app, int &exitCode);
void addTunedCommand(CLI::App &app, int &exitCode);
void addTrainCommand(CLI::App &app, int &exitCode);
void addSampleCommand(CLI::App &app, int &exitCode);
void addRunCommand(CLI::App &app, int &exitCode);
void addCompileCommand(CLI::App &app, int &exitCode);
void addBenchCommand(CLI::App &app, int &exitCode);
void addCacheCommand(CLI::App &app, int &exitCode);
void addDoctorCommand(CLI::App &app, int &exitCode);
void addLaunchCommand(CLI::App &app, int &exitCode);
void addPlanCommand(CLI::App &app, int &exitCode);

} // namespace tilewright::tool
