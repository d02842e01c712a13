#include "tilewright/train/StepBench.h"
#include "loop/ParameterUpload.h"
#include "tilewright/tensor/Random.h"
#include <algorithm>
#include <chrono>
#include <fmt/format.h>

namespace tilewright::train {
namespace {

using Clock = std::chrono::steady_clock;

double msSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double medianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Small values without meaning, cheap to make: no step is slower for them.
Status fillParameters(dist::Engine &engine) {
  std::vector<float> values;
  for (int i = 0; engine.network().rank() == 0 && i < engine.parameters(); ++i) {
    const bool norm = engine.plan().parameters[static_cast<size_t>(i)].shape.size() == 1;
    values.resize(static_cast<size_t>(engine.parameter(i).elements));
    for (size_t e = 0; e < values.size(); ++e)
      values[e] = norm ? 1 : 0.02f * (static_cast<float>((e * 2654435761u >> 13) & 0xffff) / 32768 - 1);
    if (Status s = uploadParameter(engine, i, values); !s) return s;
  }
  return engine.start();
}

/// An engine's parameters, with the time that waiting for them takes.
class TimedParameters final : public ParameterHost {
public:
  explicit TimedParameters(dist::Engine &engine) : inner(engine) {}
  Status wait(int i) override {
    const Clock::time_point start = Clock::now();
    Status status = inner.wait(i);
    waited += msSince(start);
    return status;
  }
  dist::Operand value(int i) override { return inner.value(i); }
  dist::GradientView gradient(int i) override { return inner.gradient(i); }
  Status ready(int i) override { return inner.ready(i); }

  double waited = 0; ///< Milliseconds.

private:
  EngineParameters inner;
};

} // namespace

template <class Work> Status TimedTransport::timed(Work work) {
  if (!gpu) {
    const Clock::time_point start = Clock::now();
    Status status = work();
    hostMs += msSince(start);
    return status;
  }
  void *stream = gpu->stream(dist::Lane::Communication);
  Expected<cuda::Event> begin = cuda::Event::create(gpu->gpu()), end = cuda::Event::create(gpu->gpu());
  for (Expected<cuda::Event> *event : {&begin, &end})
    if (!*event) return propagate(*event);
  if (Status s = begin->record(stream); !s) return s;
  if (Status s = work(); !s) return s;
  if (Status s = end->record(stream); !s) return s;
  around.emplace_back(std::move(*begin), std::move(*end));
  return {};
}

Status TimedTransport::run(const dist::Collective &collective) {
  ++callCount;
  if (inGroup && gpu) return inner.run(collective); // starts when the group ends
  return timed([&] { return inner.run(collective); });
}

Status TimedTransport::beginGroup() {
  inGroup = true;
  return inner.beginGroup();
}

Status TimedTransport::endGroup() {
  inGroup = false;
  return timed([&] { return inner.endGroup(); });
}

void TimedTransport::reset() {
  around.clear();
  hostMs = 0;
  callCount = 0;
}

Expected<double> TimedTransport::milliseconds() const {
  double sum = hostMs;
  for (const auto &[begin, end] : around) {
    Expected<double> ms = end.millisecondsSince(begin);
    if (!ms) return ms;
    sum += *ms;
  }
  return sum;
}

double StepBenchResult::median() const { return medianOf(milliseconds); }

Expected<StepBenchResult> benchSteps(Transformer &model, const dist::StrategyOptions &options, int64_t sequences,
                                     int64_t warmup, int64_t steps, dist::Transport &transport,
                                     dist::ComputeDevice &device) {
  TimedTransport network(transport, device);
  const ModelConfig &config = model.config();
  Expected<std::unique_ptr<dist::Engine>> made = dist::Engine::create(config.parameters(0.1), options, network, device);
  if (!made) return propagate(made);
  dist::Engine &engine = **made;
  if (Status s = fillParameters(engine); !s) return propagate(s);
  std::vector<int32_t> tokens(static_cast<size_t>(sequences * config.context)), targets(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint64_t bits = randomBits(1, static_cast<uint64_t>(transport.rank()), i);
    tokens[i] = static_cast<int32_t>(bits % static_cast<uint64_t>(config.vocabulary));
    targets[i] = static_cast<int32_t>((bits >> 32) % static_cast<uint64_t>(config.vocabulary));
  }

  StepBenchResult result;
  Expected<dist::MemoryByCategory> memory = allocatedMemory(engine, model);
  if (!memory) {
    network.abort(memory.error().message);
    return propagate(memory);
  }
  result.memory = *memory;
  std::vector<double> own, compute, wait;
  TimedParameters host(engine);
  dist::StepSettings settings;
  settings.learningRate = 1e-5;
  int64_t sent = 0;
  for (int64_t step = 0; step < warmup + steps; ++step) {
    if (step == warmup) {
      if (Status s = engine.synchronize(); !s) return propagate(s);
      network.reset();
      sent = network.sentBytes();
      if (Expected<std::vector<std::string>> met = network.exchange(""); !met) return propagate(met);
    }
    // Steps follow each other as in training: what zero1 gathers under the next forward is not waited for here.
    host.waited = 0;
    const Clock::time_point start = Clock::now();
    Expected<double> loss = model.lossAndGradients({tokens, targets, sequences, config.context}, host);
    if (!loss) return propagate(loss);
    const double computed = msSince(start);
    if (Status s = engine.endMicroBatch(); !s) return propagate(s);
    if (Expected<dist::StepReport> r = engine.finishStep(static_cast<double>(tokens.size()), settings); !r)
      return propagate(r);
    if (step < warmup) continue;
    own.push_back(msSince(start));
    compute.push_back(computed - host.waited);
    wait.push_back(own.back() - compute.back());
  }
  if (Status s = engine.synchronize(); !s) return propagate(s);
  result.calls = network.calls() / steps;
  result.sentBytes = (network.sentBytes() - sent) / steps;
  Expected<double> inCollectives = network.milliseconds();
  if (!inCollectives) return propagate(inCollectives);
  result.communicationMs = *inCollectives / static_cast<double>(steps);
  std::string text;
  for (double ms : own)
    text += fmt::format("{} ", ms);
  Expected<std::vector<std::string>> all = network.exchange(text);
  if (!all) return propagate(all);
  result.milliseconds.resize(own.size());
  for (const std::string &times : *all) {
    const char *at = times.c_str();
    for (double &slowest : result.milliseconds) {
      char *end = nullptr;
      slowest = std::max(slowest, std::strtod(at, &end));
      at = end;
    }
  }
  result.computeMs = medianOf(compute);
  result.waitMs = medianOf(wait);
  return result;
}

} // namespace tilewright::train
