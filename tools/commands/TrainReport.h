// What a training shows and writes while it runs: a progress line, and metrics as JSON lines.
#pragma once

#include "tilewright/train/TrainingRun.h"
#include <cstdio>
#include <nlohmann/json.hpp>

namespace tilewright::tool {

/// Arithmetic of a step as a share of what all ranks' matrix products reach at best.
double modelFlopsUtilisation(train::Trainer &trainer, double tokensPerSecond, int ranks);

class TrainReport final : public train::TrainObserver {
public:
  /// Rank 0 shows progress: one line that is overwritten on a terminal, else a line every `every` steps. `metrics` is a
  /// path, in which {rank} stands for the rank; without that rank 0 alone writes. A resumed training appends to it.
  static Expected<std::unique_ptr<TrainReport>> open(train::Trainer &trainer, int rank, int ranks, int64_t every,
                                                     const std::string &metrics);
  ~TrainReport() override;

  void stepped(const train::StepRecord &record) override;
  void validated(int64_t step, double loss) override;
  void saved(int64_t step, const std::string &path) override;
  /// Ends the line that is overwritten.
  void finish();
  /// Whether all metrics could be written.
  Status status() const;

private:
  TrainReport(train::Trainer &trainer, int rank, int ranks, int64_t every)
      : trainer(trainer), rank(rank), ranks(ranks), every(every) {}
  void line(const std::string &text, bool overwrite);
  void write(const nlohmann::json &json);

  train::Trainer &trainer;
  int rank, ranks;
  int64_t every;
  bool terminal = false, lineOpen = false;
  std::FILE *file = nullptr;
  std::string path;
  bool failed = false;
  double smoothedSeconds = 0; ///< A step's, lately.
};

} // namespace tilewright::tool
