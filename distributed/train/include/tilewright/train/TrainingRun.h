// The loop of a training: steps, validation, checkpoints, an orderly end. What is seen of it is the observer's.
#pragma once

#include "tilewright/train/Trainer.h"
#include <functional>

namespace tilewright::train {

class TrainObserver {
public:
  virtual ~TrainObserver() = default;
  virtual void stepped(const StepRecord &) {}
  virtual void validated(int64_t step, double loss) { (void)step, (void)loss; }
  virtual void saved(int64_t step, const std::string &path) { (void)step, (void)path; }
};

struct TrainResult {
  StepRecord last; ///< step 0: there was nothing left to do.
  std::optional<double> validationLoss;
  std::string checkpoint;         ///< The last one written.
  int64_t steps = 0, skipped = 0; ///< Of this run.
  double tokens = 0, seconds = 0; ///< Of this run's steps, all ranks.
  bool interrupted = false;       ///< It ended before the last step, because somebody asked.
};

/// Trains until the last step, or until `stopRequested` is true on any rank: then all end after the same step, with a
/// checkpoint if there is a folder for them. Gradients that are not finite (NonFinite::Stop) and data that can no
/// longer be read end it too, with a checkpoint of the last good step and the error.
Expected<TrainResult> runTraining(Trainer &trainer, TrainObserver &observer,
                                  const std::function<bool()> &stopRequested = {});

} // namespace tilewright::train
