#include "tilewright/train/TrainingRun.h"
#include <algorithm>

namespace tilewright::train {
namespace {

class Run {
public:
  Run(Trainer &trainer, TrainObserver &observer, const std::function<bool()> &stopRequested)
      : trainer(trainer), observer(observer), stopRequested(stopRequested) {}

  Expected<TrainResult> go() {
    const TrainOptions &o = trainer.options();
    const int64_t end = o.stopAt > 0 ? std::min(o.stopAt, o.steps) : o.steps;
    while (trainer.stepsDone() < end) {
      Expected<StepRecord> record = trainer.step(stopRequested && stopRequested());
      if (!record) return giveUp(std::move(record.error()));
      count(*record);
      observer.stepped(*record);
      const int64_t step = record->step;
      if (record->stop) {
        if (Status data = trainer.dataStatus(); !data) return giveUp(std::move(data.error()));
        result.interrupted = step < o.steps;
        break;
      }
      if (step % o.validateEvery == 0 || step == o.steps)
        if (Status status = validate(step); !status) return propagate(status);
      if (step % o.checkpointEvery == 0 && step < end)
        if (Status status = save(step); !status) return propagate(status);
    }
    if (trainer.stepsDone() < o.steps) result.interrupted = true;
    if (result.last.step > 0)
      if (Status status = save(result.last.step); !status) return propagate(status);
    return std::move(result);
  }

private:
  void count(const StepRecord &record) {
    result.last = record;
    ++result.steps;
    result.skipped += record.skipped;
    result.tokens += record.tokens;
    result.seconds += record.seconds;
  }

  Status validate(int64_t step) {
    Expected<std::optional<double>> loss = trainer.validationLoss();
    if (!loss) return propagate(loss);
    if (!*loss) return {};
    result.validationLoss = **loss;
    observer.validated(step, **loss);
    return {};
  }

  Status save(int64_t step) {
    if (trainer.options().checkpoints.empty()) return {};
    Expected<std::string> path = trainer.save();
    if (!path) return propagate(path);
    result.checkpoint = *path;
    observer.saved(step, *path);
    return {};
  }

  /// What was good so far is kept, if the engine still can.
  Expected<TrainResult> giveUp(Error error) {
    if (trainer.engine().steps().status() && trainer.stepsDone() > 0 && !trainer.options().checkpoints.empty()) {
      if (Status status = save(trainer.stepsDone()); status)
        error.hint += (error.hint.empty() ? "" : "; ") + ("the last good step is in " + result.checkpoint);
    }
    return tl::unexpected<Error>(std::move(error));
  }

  Trainer &trainer;
  TrainObserver &observer;
  const std::function<bool()> &stopRequested;
  TrainResult result;
};

} // namespace

Expected<TrainResult> runTraining(Trainer &trainer, TrainObserver &observer,
                                  const std::function<bool()> &stopRequested) {
  return Run(trainer, observer, stopRequested).go();
}

} // namespace tilewright::train
