#include "tilewright/train/Trainer.h"
#include "OptionAgreement.h"
#include "ParameterUpload.h"
#include "tilewright/distributed/transport/RankAgreement.h"
#include <algorithm>
#include <chrono>
#include <fmt/format.h>

namespace tilewright::train {
namespace {

/// What travels with the tokens of a step: the sum of losses, and how many ranks want to stop.
constexpr int kHostSums = 2;

} // namespace

Expected<std::unique_ptr<Trainer>> Trainer::create(TrainOptions options, dist::Transport &transport,
                                                   dist::ComputeDevice &device, Backend &backend) {
  std::unique_ptr<Trainer> trainer(new Trainer(std::move(options), transport, backend));
  const TrainOptions &o = trainer->settings;
  Status status = o.validate();
  if (status) status = trainer->openData();
  if (status = dist::agree(transport, status); !status) return propagate(status);
  if (status = agreeOnOptions(transport, trainer->commonOptions()); !status) return propagate(status);

  const int64_t ranks = transport.worldSize(), largestShare = (o.batch + ranks - 1) / ranks;
  trainer->microSequences = (largestShare + o.accumulation - 1) / o.accumulation;
  dist::StrategyOptions strategy;
  strategy.strategy = o.strategy;
  strategy.bucketBytes = o.bucketBytes ? o.bucketBytes : transport.usualBucketBytes();
  strategy.parameterType = o.parameterType;
  strategy.reductionType = o.reductionType;
  strategy.accumulation = o.accumulation;
  strategy.hostSums = kHostSums;
  strategy.activationBytes = Transformer::activationBytes(o.model, trainer->microSequences, true, backend);
  Expected<std::unique_ptr<dist::Engine>> engine =
      dist::Engine::create(o.model.parameters(o.weightDecay), strategy, transport, device);
  if (!engine) return propagate(engine);
  trainer->steps = std::move(*engine);
  Expected<std::unique_ptr<Transformer>> model = Transformer::create(o.model, backend, trainer->microSequences, true);
  if (model) {
    trainer->transformer = std::move(*model);
    Expected<dist::MemoryByCategory> memory = allocatedMemory(*trainer->steps, *trainer->transformer);
    if (memory) trainer->allocated = *memory;
    status = memory.map([](const dist::MemoryByCategory &) {});
  } else {
    status = propagate(model);
  }
  if (status = dist::agree(transport, status); !status) return propagate(status);
  status = o.resume.empty() ? trainer->initialise() : trainer->resume();
  if (!status) return propagate(status);
  if (status = dist::agree(transport, trainer->readStep(trainer->dataStep)); !status) return propagate(status);
  return trainer;
}

Status Trainer::openData() {
  const TrainOptions &o = settings;
  Expected<TokenFile> file = TokenFile::open(o.data, o.format, o.model.vocabulary);
  if (!file) return propagate(file);
  data = *file;
  int64_t end = data->tokens();
  const int64_t needed = o.model.context + 1;
  if (!o.validationData.empty()) {
    Expected<TokenFile> apart = TokenFile::open(o.validationData, o.format, o.model.vocabulary);
    if (!apart) return propagate(apart);
    validation = *apart;
    validationOrder = SequenceOrder(0, validation->tokens(), o.model.context, o.seed);
    validationTokenCount = validation->tokens();
  } else if (o.validationShare > 0) {
    validation = data;
    validationTokenCount = static_cast<int64_t>(static_cast<double>(end) * o.validationShare);
    validationOrder = SequenceOrder(end - validationTokenCount, end, o.model.context, o.seed);
    end -= validationTokenCount;
  }
  order = SequenceOrder(0, end, o.model.context, o.seed);
  trainingTokenCount = end;
  if (order.windows() < 1)
    return fail(Stage::Input,
                fmt::format("{}: {} tokens for training; a context of {} needs at least {}", o.data, end,
                            o.model.context, needed),
                "give more data, a smaller --context or a smaller --validation-share");
  if (validation && validationOrder.windows() < 1)
    return fail(Stage::Input,
                fmt::format("{}: {} tokens for validation; a context of {} needs at least {}", validation->path(),
                            validationTokenCount, o.model.context, needed),
                "--validation-share 0 does without validation");
  if (Status status = data->verify(); !status) return status;
  return o.validationData.empty() ? Status() : validation->verify();
}

std::map<std::string, std::string> Trainer::commonOptions() const {
  std::map<std::string, std::string> values = settings.common();
  values["data_tokens"] = fmt::format("{}", trainingTokenCount);
  values["validation_tokens"] = fmt::format("{}", validationTokenCount);
  return values;
}

Status Trainer::initialise() {
  // Rank 0's values are everyone's.
  for (int i = 0; network.rank() == 0 && i < steps->parameters(); ++i) {
    std::vector<float> values(static_cast<size_t>(steps->parameter(i).elements));
    fillInitial(settings.model, settings.seed, i, values);
    if (Status status = uploadParameter(*steps, i, values); !status) {
      network.abort(status.error().message);
      return status;
    }
  }
  return steps->start();
}

Status Trainer::resume() {
  Expected<dist::CheckpointSummary> loaded = dist::loadCheckpoint(*steps, settings.resume);
  if (!loaded) return propagate(loaded);
  const auto &saved = loaded->notes;
  auto number = [&](const char *name) -> Expected<int64_t> {
    const auto note = saved.find(name);
    char *end = nullptr;
    const int64_t value = note == saved.end() ? -1 : std::strtoll(note->second.c_str(), &end, 10);
    if (value < 0 || *end)
      return fail(Stage::Input, fmt::format("{}: checkpoint.json: notes have no number {}", loaded->path, name),
                  "the checkpoint was not written by `tilewright train`");
    return value;
  };
  Expected<int64_t> position = number("data_step");
  if (!position) return propagate(position);
  dataStep = *position;
  return compareWithSaved(*loaded);
}

std::map<std::string, std::string> Trainer::notes() const {
  std::map<std::string, std::string> values = settings.notes();
  values["data_step"] = fmt::format("{}", dataStep);
  values["data_tokens"] = fmt::format("{}", trainingTokenCount);
  values["validation_tokens"] = fmt::format("{}", validationTokenCount);
  return values;
}

Status Trainer::compareWithSaved(const dist::CheckpointSummary &checkpoint) {
  const auto &saved = checkpoint.notes;
  if (const auto note = saved.find("model"); note != saved.end()) {
    Expected<ModelConfig> was = ModelConfig::fromJson(note->second);
    if (!was) return propagate(was);
    // These change no shape, but what the parameters mean.
    const ModelConfig &now = settings.model;
    for (auto [name, before, after] :
         {std::tuple{"heads", static_cast<double>(was->heads), static_cast<double>(now.heads)},
          {"rope_base", was->ropeBase, now.ropeBase},
          {"norm_epsilon", was->normEpsilon, now.normEpsilon}})
      if (before != after)
        return fail(Stage::Input,
                    fmt::format("{}: the model was trained with {} {}; found {}", checkpoint.path, name, before, after),
                    "go on with the model that was saved");
  }
  auto compare = [&](const std::string &name, const std::string &was, const std::string &now) {
    if (was != now) changed.push_back({name, was, now});
  };
  for (const auto &[name, now] : notes())
    if (const auto note = saved.find(name); note != saved.end()) compare(name, note->second, now);
  compare("ranks", fmt::format("{}", checkpoint.worldSize), fmt::format("{}", network.worldSize()));
  compare("strategy", checkpoint.strategy, std::string(toString(settings.strategy)));
  compare("parameters", std::string(toString(checkpoint.parameterType)), std::string(toString(settings.parameterType)));
  return {};
}

void Trainer::share(int64_t &first, int64_t &count) const {
  const int64_t ranks = network.worldSize(), rank = network.rank();
  first = settings.batch * rank / ranks;
  count = settings.batch * (rank + 1) / ranks - first;
}

Status Trainer::readSequence(const TokenFile &file, int64_t begin, size_t place) {
  const size_t context = static_cast<size_t>(settings.model.context);
  window.resize(context + 1);
  if (Status status = file.read(begin, window); !status) return status;
  std::copy_n(window.begin(), context, tokens.begin() + static_cast<int64_t>(place * context));
  std::copy_n(window.begin() + 1, context, targets.begin() + static_cast<int64_t>(place * context));
  return {};
}

Status Trainer::readStep(int64_t step) {
  int64_t first = 0, count = 0;
  share(first, count);
  tokens.resize(static_cast<size_t>(count * settings.model.context));
  targets.resize(tokens.size());
  for (int64_t i = 0; i < count; ++i)
    if (Status status = readSequence(*data, order.begin(step * settings.batch + first + i), static_cast<size_t>(i));
        !status)
      return status;
  return {};
}

Expected<StepRecord> Trainer::step(bool requestStop) {
  const auto started = std::chrono::steady_clock::now();
  const int64_t context = settings.model.context;
  int64_t first = 0, count = 0;
  share(first, count);
  EngineParameters host(*steps);
  double loss = 0;
  for (int64_t micro = 0; micro < settings.accumulation; ++micro) {
    const int64_t begin = count * micro / settings.accumulation, end = count * (micro + 1) / settings.accumulation;
    if (begin == end) continue; // less data than micro-batches
    const auto part = [&](const std::vector<int32_t> &all) {
      return std::span(all).subspan(static_cast<size_t>(begin * context), static_cast<size_t>((end - begin) * context));
    };
    Expected<double> sum = transformer->lossAndGradients({part(tokens), part(targets), end - begin, context}, host);
    if (!sum) {
      network.abort(sum.error().message);
      return propagate(sum);
    }
    loss += *sum;
    if (Status status = steps->endMicroBatch(); !status) return propagate(status);
  }
  // The next step's data is read before this one ends: if that fails, all ranks learn it in time.
  nextStatus = readStep(dataStep + 1);

  StepRecord record;
  record.step = dataStep + 1;
  record.learningRate = settings.rateAt(record.step);
  dist::StepSettings update;
  update.learningRate = record.learningRate;
  update.beta1 = settings.beta1;
  update.beta2 = settings.beta2;
  update.epsilon = settings.epsilon;
  update.maxNorm = settings.maxNorm;
  update.nonFinite = settings.nonFinite;
  const double sums[kHostSums] = {loss, requestStop || !nextStatus ? 1.0 : 0.0};
  Expected<dist::StepReport> report = steps->finishStep(static_cast<double>(count * context), update, sums);
  if (!report) return propagate(report);
  ++dataStep;
  record.loss = report->tokens > 0 ? report->sums[0] / report->tokens : 0;
  record.stop = report->sums[1] > 0;
  record.gradientNorm = report->norm;
  record.tokens = report->tokens;
  record.skipped = report->skipped;
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return record;
}

Expected<std::optional<double>> Trainer::validationLoss() {
  if (!validation) return std::optional<double>();
  if (Status status = steps->synchronize(); !status) return propagate(status);
  // Which windows does not depend on the ranks, nor on how many there are.
  const int64_t windows = std::min(settings.validationSequences, validationOrder.windows());
  const int64_t begin = windows * network.rank() / network.worldSize(),
                end = windows * (network.rank() + 1) / network.worldSize(), context = settings.model.context;
  EngineParameters host(*steps);
  const std::vector<int32_t> keptTokens = tokens, keptTargets = targets; // the next step's
  double sum = 0;
  Status status;
  for (int64_t at = begin; at < end && status; at += microSequences) {
    const int64_t count = std::min(microSequences, end - at);
    tokens.resize(static_cast<size_t>(count * context));
    targets.resize(tokens.size());
    for (int64_t i = 0; i < count && status; ++i)
      status = readSequence(*validation, validationOrder.window((at + i) * validationOrder.windows() / windows),
                            static_cast<size_t>(i));
    if (!status) break;
    Expected<double> loss = transformer->loss({tokens, targets, count, context}, host);
    if (!loss)
      status = propagate(loss);
    else
      sum += *loss;
  }
  tokens = keptTokens;
  targets = keptTargets;
  if (status = dist::agree(network, status); !status) return propagate(status);
  Expected<std::vector<std::string>> all = network.exchange(fmt::format("{}", sum));
  if (!all) return propagate(all);
  double total = 0;
  for (const std::string &part : *all)
    total += std::strtod(part.c_str(), nullptr);
  return std::optional(total / static_cast<double>(windows * context));
}

Status Trainer::dataStatus() {
  if (Status status = steps->synchronize(); !status) return status;
  return dist::agree(network, nextStatus);
}

Expected<std::string> Trainer::save() {
  return dist::saveCheckpoint(*steps, {settings.checkpoints, notes(), settings.keepCheckpoints});
}

} // namespace tilewright::train
