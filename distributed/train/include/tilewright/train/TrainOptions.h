// Everything that decides a training, as a plain value.
#pragma once

#include "tilewright/distributed/engine/ComputeDevice.h"
#include "tilewright/train/ModelConfig.h"
#include "tilewright/train/TokenFile.h"
#include <map>

namespace tilewright::train {

struct TrainOptions {
  ModelConfig model;

  std::string data;
  TokenFormat format = TokenFormat::Text;
  std::string validationData;    ///< Empty: the last `validationShare` of `data`.
  double validationShare = 0.05; ///< 0: no validation.

  int64_t steps = 1000;
  int64_t stopAt = 0; ///< End after this step as an interruption would; 0: go through.
  int64_t batch = 8;  ///< Sequences a step over all ranks.
  int accumulation = 1;
  uint64_t seed = 1;

  /// Rises linearly over `warmup` steps, then falls along half a cosine to `minimumRate` at the last step.
  double learningRate = 1e-3, minimumRate = 1e-4;
  int64_t warmup = 20;
  double weightDecay = 0.1, maxNorm = 1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  dist::StepSettings::NonFinite nonFinite = dist::StepSettings::NonFinite::Stop;

  dist::Strategy strategy = dist::Strategy::Zero1;
  int64_t bucketBytes = 0; ///< 0: the transport's usual ones.
  ElementType parameterType = ElementType::F32; ///< BF16: with fp32 master weights.
  ElementType reductionType = ElementType::F32;

  int64_t validateEvery = 100;
  int64_t validationSequences = 32; ///< At most, spread evenly over the validation data.

  std::string checkpoints;       ///< Folder; empty: none are written.
  int64_t checkpointEvery = 500; ///< And after the last step.
  int keepCheckpoints = 2;
  std::string resume; ///< A checkpoint, or a folder of them.

  /// The error names the option, its value and what is accepted.
  Status validate() const;
  /// Of step `step`, from 1.
  double rateAt(int64_t step) const;
  /// What a checkpoint remembers of the options, and a resumed training compares.
  std::map<std::string, std::string> notes() const;
  /// What all ranks of a training must have alike: notes() but for paths, which may differ between machines, and what
  /// decides which calls are made when.
  std::map<std::string, std::string> common() const;
};

} // namespace tilewright::train
