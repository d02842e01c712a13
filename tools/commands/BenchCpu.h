// `tilewright bench cpu`: Tilewright's CPU kernels against standard attention on OpenBLAS, in the same run.
#pragma once

#include <CLI/CLI.hpp>

namespace tilewright::tool {

void addBenchCpu(CLI::App &bench, int &exitCode);

} // namespace tilewright::tool
