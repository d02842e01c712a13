// The command line of a training.
#pragma once

#include "TrainSession.h"
#include "tilewright/train/TrainOptions.h"
#include <CLI/CLI.hpp>
#include <optional>

namespace tilewright::tool {

class TrainFlags {
public:
  void addTo(CLI::App &command);
  /// Names become values; the model follows from preset, data and what is set by hand. The precision is the session's
  /// to choose unless it is set.
  Expected<train::TrainOptions> options() const;
  Expected<SessionOptions> session() const;

private:
  train::TrainOptions values;
  std::string model = "tiny", format = "auto", strategy = "zero1", precision = "auto", reduction = "fp32",
              nonFinite = "stop";
  std::string target = "auto", backward = "two_kernel";
  bool tf32 = false;
  std::optional<int64_t> vocabulary, context, width, layers, heads, hidden;
  std::optional<double> minimumRate;
};

} // namespace tilewright::tool
