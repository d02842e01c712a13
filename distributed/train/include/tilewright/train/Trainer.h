// One rank's part of a training: model, data and engine, a step at a time. TrainingRun.h has the loop around it.
#pragma once

#include "tilewright/distributed/checkpoint/Checkpoint.h"
#include "tilewright/train/AllocatedMemory.h"
#include "tilewright/train/SequenceOrder.h"
#include "tilewright/train/TrainOptions.h"
#include <optional>

namespace tilewright::train {

/// Of one step, the same on every rank.
struct StepRecord {
  int64_t step = 0; ///< From 1; steps that were skipped count.
  double loss = 0;  ///< Mean cross-entropy in nats a token.
  double learningRate = 0;
  double gradientNorm = 0; ///< Of the mean gradient before clipping.
  double tokens = 0;       ///< Of all ranks.
  bool skipped = false;    ///< The gradient was not finite, and nothing was updated.
  double seconds = 0;      ///< On this rank.
  bool stop = false;       ///< A rank asked to stop, or cannot read its next data: all end here.
};

/// An option that a resumed training has otherwise than its checkpoint.
struct OptionChange {
  std::string name, saved, now;
};

/// Every call is made by all ranks. One thread at a time.
class Trainer {
public:
  /// Opens and reads through the data, makes or loads the parameters. An error on one rank is an error on all.
  /// `transport`, `device` and `backend` must outlive the trainer.
  static Expected<std::unique_ptr<Trainer>> create(TrainOptions options, dist::Transport &transport,
                                                   dist::ComputeDevice &device, Backend &backend);

  /// `requestStop`: this rank wants to end after the step.
  Expected<StepRecord> step(bool requestStop = false);
  /// Mean cross-entropy over the validation data; nothing if there is none.
  Expected<std::optional<double>> validationLoss();
  /// The checkpoint's path.
  Expected<std::string> save();

  const TrainOptions &options() const { return settings; }
  int64_t stepsDone() const { return dataStep; }
  /// After a step that stops: whether a rank can no longer read its data. The same on all ranks.
  Status dataStatus();
  const std::vector<OptionChange> &changes() const { return changed; }
  dist::Engine &engine() { return *steps; }
  Transformer &model() { return *transformer; }
  Backend &backend() { return *machine; }
  /// What this rank has allocated: allocatedMemory().
  const dist::MemoryByCategory &memory() const { return allocated; }
  int64_t trainingTokens() const { return trainingTokenCount; }
  int64_t validationTokens() const { return validationTokenCount; }

private:
  Trainer(TrainOptions options, dist::Transport &transport, Backend &backend)
      : settings(std::move(options)), network(transport), machine(&backend) {}
  Status openData();
  /// What all ranks must have alike.
  std::map<std::string, std::string> commonOptions() const;
  Status initialise();
  Status resume();
  /// The options', and where in which data the training is.
  std::map<std::string, std::string> notes() const;
  /// Refuses another function of the same parameters; other options become changes().
  Status compareWithSaved(const dist::CheckpointSummary &checkpoint);
  /// Sequences [first, first + count) of this rank in step `step` of the data.
  void share(int64_t &first, int64_t &count) const;
  Status readStep(int64_t step);
  Status readSequence(const TokenFile &file, int64_t begin, size_t place);

  TrainOptions settings;
  dist::Transport &network;
  Backend *machine;
  std::optional<TokenFile> data, validation;
  SequenceOrder order, validationOrder;
  int64_t trainingTokenCount = 0, validationTokenCount = 0;
  std::unique_ptr<dist::Engine> steps;
  std::unique_ptr<Transformer> transformer;
  dist::MemoryByCategory allocated;
  int64_t microSequences = 0;
  int64_t dataStep = 0; ///< Steps whose data has been used.
  std::vector<int32_t> tokens, targets, window;
  Status nextStatus;
  std::vector<OptionChange> changed;
};

} // namespace tilewright::train
