// The peers of a run: what can be measured beside Tilewright, measured cell by cell.
#pragma once

#include "BenchResult.h"
#include "GpuMonitor.h"
#include "LaunchTimer.h"
#include "PeerProcess.h"

namespace tilewright::bench {

class Peers {
public:
  /// Columns of a choice: "auto" (all), "none", or names with commas out of cudnn, fa2, flex. The FA3 estimate follows
  /// cuDNN.
  static Expected<std::vector<std::string>> parseChoice(const std::string &choice);

  /// A Python without PyTorch or without a GPU is no error: every peer then says why. `interrupted` outlives the
  /// object.
  static Expected<Peers> create(const std::string &choice, const std::string &python,
                                const std::atomic<bool> &interrupted);

  /// As parseChoice() gave them.
  const std::vector<std::string> &names() const { return columns; }
  /// "PyTorch 2.11.0, cuDNN 9.19.0", or why there are none; empty with "none".
  const std::string &origin() const { return from; }

  /// Measures one case with every peer, in the order of names().
  std::vector<Contestant> measure(const BenchCase &benchCase, const SeriesOptions &options, GpuMonitor *monitor);

  /// cuDNN's O on inputs from .npy files (layout bshd), written to `output`.
  Status cudnnOutput(const BenchCase &benchCase, const std::filesystem::path &q, const std::filesystem::path &k,
                     const std::filesystem::path &v, const std::filesystem::path &output);

  bool has(std::string_view name) const;

private:
  void revive();
  bool reviveIfGone();
  /// The reply, or why there is none; starts the child anew where it has gone.
  Expected<nlohmann::json> ask(const nlohmann::json &request, double timeoutSeconds);

  std::string python;
  const std::atomic<bool> *interrupted = nullptr;
  std::vector<std::string> columns;
  std::string from;
  std::string unavailable; ///< Why nothing can be measured; empty when it can.
  std::unique_ptr<PeerProcess> process;
  int revivals = 0;
};

} // namespace tilewright::bench
