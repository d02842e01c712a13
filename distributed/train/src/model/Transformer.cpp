#include "TransformerState.h"
#include "tilewright/tensor/Half.h"
#include <cmath>
#include <fmt/format.h>

namespace tilewright::train {

Transformer::Transformer(std::unique_ptr<State> state) : state(std::move(state)) {}
Transformer::~Transformer() = default;
const ModelConfig &Transformer::config() const { return state->config; }
int64_t Transformer::allocatedBytes() const { return state->allocatedBytes; }

Expected<std::unique_ptr<Transformer>> Transformer::create(const ModelConfig &config, Backend &backend,
                                                           int64_t sequences, bool training) {
  if (Status status = config.validate(); !status) return propagate(status);
  if (sequences < 1)
    return fail(Stage::Input, fmt::format("model: room for {} sequences; expected at least 1", sequences));
  const int64_t unit = backend.columnUnit();
  if (config.headDim() % unit || config.hidden % unit)
    return fail(
        Stage::Input,
        fmt::format("model: head dim {} (width {} over {} heads) and hidden {}: on {} both must be multiples of "
                    "{}",
                    config.headDim(), config.width, config.heads, config.hidden, backend.description(), unit),
        "change them with --width, --heads and --hidden, or train with --target cpu");
  const AttentionShape shape{sequences, config.heads, config.headDim(), config.context, config.context};
  if (Status status = backend.prepareAttention(shape, training); !status) return propagate(status);
  auto state = std::make_unique<State>(config, backend);
  state->sequences = sequences;
  state->training = training;
  Expected<Activations> made = Activations::make(config, sequences, training, backend.activationType(),
                                                 backend.headRows(), [&](const std::string &name, int64_t bytes) {
                                                   state->allocatedBytes += bytes;
                                                   return backend.allocate(bytes, name);
                                                 });
  if (!made) return propagate(made);
  state->a = std::move(*made);
  if (Status status = state->fillTables(); !status) return propagate(status);
  return std::unique_ptr<Transformer>(new Transformer(std::move(state)));
}

std::vector<ActivationBuffer> Transformer::activations(const ModelConfig &config, int64_t sequences, bool training,
                                                       ElementType type, int64_t headRows) {
  std::vector<ActivationBuffer> buffers;
  static char nowhere; // a place that is never read or written, so that no piece looks as if it had none
  (void)Activations::make(config, sequences, training, type, headRows,
                          [&](const std::string &name, int64_t bytes) -> Expected<void *> {
                            buffers.push_back({name, bytes});
                            return static_cast<void *>(&nowhere);
                          });
  return buffers;
}

int64_t Transformer::activationBytes(const ModelConfig &config, int64_t sequences, bool training,
                                     const Backend &backend) {
  int64_t total = 0;
  for (const ActivationBuffer &buffer :
       activations(config, sequences, training, backend.activationType(), backend.headRows()))
    total += buffer.bytes;
  return total;
}

Expected<double> Transformer::loss(const Batch &batch, ParameterHost &host) { return state->run(batch, false, host); }

Expected<double> Transformer::lossAndGradients(const Batch &batch, ParameterHost &host) {
  if (!state->training) return fail(Stage::Input, "model: gradients of a model that was made without training");
  return state->run(batch, true, host);
}

Expected<std::vector<float>> Transformer::next(std::span<const int32_t> tokens, int64_t start, ParameterHost &host) {
  State &s = *state;
  const int64_t count = static_cast<int64_t>(tokens.size());
  if (count < 1 || start < 0 || start + count > s.config.context)
    return fail(Stage::Input,
                fmt::format("model: {} tokens at position {} of a context of {}", count, start, s.config.context));
  for (int32_t token : tokens)
    if (token < 0 || token >= s.config.vocabulary)
      return fail(Stage::Input, fmt::format("token {} is outside the vocabulary of {}", token, s.config.vocabulary));
  if (Status status = s.backend.fromHost(s.a.tokens + start, tokens.data(), count * 4); !status)
    return propagate(status);
  const State::Rows r{1, count, start};
  if (Status status = s.forward(r, host); !status) return propagate(status);
  if (Status status = host.wait(s.index.head()); !status) return propagate(status);
  const Matrix last = s.a.outputNorm.rowRange(start + count - 1, 1), logits = s.a.logits.rowRange(0, 1);
  if (Status status = s.backend.matmul(last, false, s.parameter(s.index.head(), host), true, logits, false); !status)
    return propagate(status);
  std::vector<char> raw(static_cast<size_t>(s.config.vocabulary * sizeInBytes(logits.type)));
  if (Status status = s.backend.toHost(raw.data(), logits.data, static_cast<int64_t>(raw.size())); !status)
    return propagate(status);
  std::vector<float> values(static_cast<size_t>(s.config.vocabulary));
  const dist::Operand operand{raw.data(), s.config.vocabulary, logits.type};
  if (operand.type == ElementType::F32)
    std::copy_n(static_cast<const float *>(operand.data), values.size(), values.begin());
  else
    floatFromBFloat16({static_cast<const uint16_t *>(operand.data), values.size()}, values);
  return values;
}

Status Transformer::State::fillTables() {
  const int64_t pairs = config.headDim() / 2;
  std::vector<float> cosines(static_cast<size_t>(config.context * pairs)), sines(cosines.size());
  for (int64_t p = 0; p < config.context; ++p)
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(config.ropeBase, -static_cast<double>(i) / static_cast<double>(pairs));
      cosines[static_cast<size_t>(p * pairs + i)] = static_cast<float>(std::cos(angle));
      sines[static_cast<size_t>(p * pairs + i)] = static_cast<float>(std::sin(angle));
    }
  const int64_t bytes = static_cast<int64_t>(cosines.size()) * 4;
  if (Status status = backend.fromHost(a.cosines, cosines.data(), bytes); !status) return status;
  return backend.fromHost(a.sines, sines.data(), bytes);
}

Status Transformer::State::check(const Batch &batch) const {
  const int64_t count = batch.sequences * batch.length;
  if (batch.sequences < 1 || batch.sequences > sequences || batch.length < 1 || batch.length > config.context)
    return fail(Stage::Input, fmt::format("batch: {} sequences of {} tokens; there is room for {} of {}",
                                          batch.sequences, batch.length, sequences, config.context));
  if (static_cast<int64_t>(batch.tokens.size()) != count || static_cast<int64_t>(batch.targets.size()) != count)
    return fail(Stage::Input, fmt::format("batch: expected {} tokens and targets, found {} and {}", count,
                                          batch.tokens.size(), batch.targets.size()));
  for (size_t i = 0; i < batch.tokens.size(); ++i)
    if (batch.tokens[i] < 0 || batch.tokens[i] >= config.vocabulary || batch.targets[i] >= config.vocabulary)
      return fail(Stage::Input, fmt::format("batch: token {} with target {} at position {}: the vocabulary is {}",
                                            batch.tokens[i], batch.targets[i], i, config.vocabulary));
  return {};
}

Status Transformer::State::upload(const Batch &batch) {
  const int64_t bytes = static_cast<int64_t>(batch.tokens.size()) * 4;
  if (Status status = backend.fromHost(a.tokens, batch.tokens.data(), bytes); !status) return status;
  return backend.fromHost(a.targets, batch.targets.data(), bytes);
}

Expected<double> Transformer::State::run(const Batch &batch, bool gradients, ParameterHost &host) {
  if (Status status = check(batch); !status) return propagate(status);
  if (Status status = upload(batch); !status) return propagate(status);
  if (Status status = backend.clear(a.loss, sizeof(double)); !status) return propagate(status);
  const Rows r{batch.sequences, batch.length, 0};
  if (Status status = forward(r, host); !status) return propagate(status);
  if (Status status = headLoss(r, gradients, host); !status) return propagate(status);
  if (gradients)
    if (Status status = backward(r, host); !status) return propagate(status);
  double loss = 0;
  if (Status status = backend.toHost(&loss, a.loss, sizeof(loss)); !status) return propagate(status);
  return loss;
}

} // namespace tilewright::train
