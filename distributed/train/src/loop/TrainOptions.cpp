#include "tilewright/train/TrainOptions.h"
#include <cmath>
#include <fmt/format.h>

namespace tilewright::train {
namespace {

const char *nameOf(dist::StepSettings::NonFinite policy) {
  using NonFinite = dist::StepSettings::NonFinite;
  return policy == NonFinite::Stop ? "stop" : policy == NonFinite::Skip ? "skip" : "continue";
}

} // namespace

Status TrainOptions::validate() const {
  if (Status status = model.validate(); !status) return status;
  constexpr int64_t kMost = int64_t{1} << 40;
  struct Number {
    const char *name;
    int64_t value, least, most;
  };
  for (const Number &n : {Number{"steps", steps, 1, kMost},
                          {"stop-at", stopAt, 0, kMost},
                          {"batch", batch, 1, 1 << 24},
                          {"accumulation", accumulation, 1, 1 << 20},
                          {"warmup", warmup, 0, kMost},
                          {"bucket bytes", bucketBytes, 0, kMost},
                          {"validate-every", validateEvery, 1, kMost},
                          {"validation-sequences", validationSequences, 1, kMost},
                          {"checkpoint-every", checkpointEvery, 1, kMost},
                          {"keep-checkpoints", keepCheckpoints, 0, 1 << 20}})
    if (n.value < n.least || n.value > n.most)
      return fail(Stage::Input, fmt::format("{}: expected {} to {}, found {}", n.name, n.least, n.most, n.value));
  struct Real {
    const char *name;
    double value, least, most; ///< Both accepted.
  };
  for (const Real &r : {Real{"learning-rate", learningRate, 0, 1e30},
                        {"minimum-rate", minimumRate, 0, learningRate},
                        {"weight-decay", weightDecay, 0, 1e3},
                        {"clip", maxNorm, 0, 1e30},
                        {"beta1", beta1, 0, 0.999999},
                        {"beta2", beta2, 0, 0.999999},
                        {"epsilon", epsilon, 1e-30, 1},
                        {"validation-share", validationShare, 0, 0.9}})
    if (!(r.value >= r.least && r.value <= r.most))
      return fail(Stage::Input, fmt::format("{}: expected {} to {}, found {}", r.name, r.least, r.most, r.value));
  if (model.vocabulary < 256 && format == TokenFormat::Text)
    return fail(Stage::Input,
                fmt::format("vocabulary: tokens of text are bytes, so at least 256; found {}", model.vocabulary));
  return {};
}

double TrainOptions::rateAt(int64_t step) const {
  if (step <= warmup) return learningRate * static_cast<double>(step) / static_cast<double>(warmup);
  if (step >= steps) return minimumRate;
  const double share = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  return minimumRate + (learningRate - minimumRate) * 0.5 * (1 + std::cos(M_PI * share));
}

std::map<std::string, std::string> TrainOptions::notes() const {
  return {{"model", model.json()},
          {"data", data},
          {"data_format", std::string(toString(format))},
          {"validation_data", validationData},
          {"validation_share", fmt::format("{}", validationShare)},
          {"reduction", std::string(toString(reductionType))},
          {"non_finite", nameOf(nonFinite)},
          {"steps", fmt::format("{}", steps)},
          {"batch", fmt::format("{}", batch)},
          {"accumulation", fmt::format("{}", accumulation)},
          {"seed", fmt::format("{}", seed)},
          {"learning_rate", fmt::format("{}", learningRate)},
          {"minimum_rate", fmt::format("{}", minimumRate)},
          {"warmup", fmt::format("{}", warmup)},
          {"weight_decay", fmt::format("{}", weightDecay)},
          {"clip", fmt::format("{}", maxNorm)},
          {"beta1", fmt::format("{}", beta1)},
          {"beta2", fmt::format("{}", beta2)},
          {"epsilon", fmt::format("{}", epsilon)}};
}

std::map<std::string, std::string> TrainOptions::common() const {
  std::map<std::string, std::string> values = notes();
  for (const char *path : {"data", "validation_data"})
    values.erase(path);
  values.merge(std::map<std::string, std::string>{{"strategy", std::string(toString(strategy))},
                                                  {"bucket", fmt::format("{}", bucketBytes)},
                                                  {"parameters", std::string(toString(parameterType))},
                                                  {"stop_at", fmt::format("{}", stopAt)},
                                                  {"validate_every", fmt::format("{}", validateEvery)},
                                                  {"validation_sequences", fmt::format("{}", validationSequences)},
                                                  {"checkpoint_every", fmt::format("{}", checkpointEvery)},
                                                  {"checkpoints", checkpoints.empty() ? "none" : "written"},
                                                  {"resume", resume.empty() ? "no" : "yes"}});
  return values;
}

} // namespace tilewright::train
