// The command line of a training.
#pragma once

#include "tilewright/train/TrainOptions.h"
#include <CLI/CLI.hpp>
#include <optional>

namespace tilewright::tool {

class TrainFlags {
public:
  void addTo(CLI::App &command);
  /// Names become values; the model follows from preset, data and what is set by hand.
  Expected<train::TrainOptions> options() const;

private:
  train::TrainOptions values;
  std::string model = "tiny", format = "auto", strategy = "zero1", precision = "fp32", reduction = "fp32",
              nonFinite = "stop";
  std::optional<int64_t> vocabulary, context, width, layers, heads, hidden;
  std::optional<double> minimumRate;
};

} // namespace tilewright::tool
