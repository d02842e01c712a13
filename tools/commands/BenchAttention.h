// `tilewright bench attention`: a grid of attention problems on the GPU, beside its peers, in one run.
#pragma once

#include <CLI/CLI.hpp>

namespace tilewright::tool {

void addBenchAttention(CLI::App &bench, int &exitCode);

} // namespace tilewright::tool
