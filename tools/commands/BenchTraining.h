// `tilewright bench ddp` and `bench zero`: what data-parallel strategies cost on the real model, on this machine.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace tilewright::tool {

void addBenchTraining(CLI::App &bench, int &exitCode);

/// The tables, for people: our rows beside those of the same experiments in the course notes, from other machines.
std::string ddpTable(const nlohmann::json &result);
std::string zeroTable(const nlohmann::json &result);

} // namespace tilewright::tool
