// FA3's speed where it cannot be run: its ratio to cuDNN as measured earlier on one machine in one run.
#pragma once

#include "BenchCase.h"
#include <optional>

namespace tilewright::bench {

/// Time of cuDNN over time of FA3, for a case of the measured table (16384 tokens, heads * dim = 2048, bf16); nullopt
/// for any other.
std::optional<double> fa3OverCudnn(const BenchCase &benchCase);

/// Where the ratios come from, one sentence.
std::string fa3Source();

} // namespace tilewright::bench
