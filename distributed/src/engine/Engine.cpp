#include "tilewright/distributed/engine/Engine.h"
#include "tilewright/distributed/plan/PlanCheck.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace tilewright::dist {
namespace {

/// The part of a text that an exchange of differences carries.
constexpr size_t kLongestDifference = 700;

} // namespace

Expected<std::unique_ptr<Engine>> Engine::create(const ParameterList &parameters, StrategyOptions options,
                                                 Transport &transport, ComputeDevice &device) {
  options.worldSize = transport.worldSize();
  Expected<StepPlan> plan = buildPlan(parameters, options);
  if (!plan) {
    transport.abort(plan.error().message);
    return propagate(plan);
  }
  return create(std::move(*plan), transport, device);
}

Expected<std::unique_ptr<Engine>> Engine::create(StepPlan plan, Transport &transport, ComputeDevice &device) {
  if (Status status = checkPlan(plan); !status) {
    transport.abort(status.error().message);
    return propagate(status);
  }
  std::unique_ptr<Engine> engine(new Engine(transport, device));
  if (Status status = engine->compareWithOthers(plan); !status) return propagate(status);
  Expected<std::unique_ptr<StepExecutor>> executor = StepExecutor::create(std::move(plan), transport, device);
  if (!executor) {
    transport.abort(executor.error().message);
    return propagate(executor);
  }
  engine->executor = std::move(*executor);
  engine->findOps();
  return engine;
}

Status Engine::compareWithOthers(const StepPlan &plan) {
  const std::string text = "version=" TILEWRIGHT_VERSION "\n" + plan.canonicalText();
  Expected<std::vector<std::string>> hashes = transport.exchange(TILEWRIGHT_VERSION " " + plan.hash());
  if (!hashes) return propagate(hashes);
  if (std::all_of(hashes->begin(), hashes->end(), [&](const std::string &h) { return h == hashes->front(); }))
    return {};
  // Only now are texts sent; everyone takes part, so that everyone can say who differs, and how.
  Expected<std::vector<std::string>> texts = transport.exchange(transport.rank() == 0 ? text : "");
  if (!texts) return propagate(texts);
  Expected<std::vector<std::string>> differences =
      transport.exchange(describeDifference(texts->front(), text).substr(0, kLongestDifference));
  if (!differences) return propagate(differences);
  for (size_t rank = 0; rank < differences->size(); ++rank)
    if (!(*differences)[rank].empty())
      return fail(Stage::Plan, fmt::format("rank {} has another plan than rank 0: {}", rank, (*differences)[rank]),
                  "start all ranks with the same model, options and version");
  return fail(Stage::Plan, "the ranks' plans differ");
}

void Engine::findOps() {
  const StepPlan &p = plan();
  parameterBuffer = p.bufferNamed("parameters");
  gradientBuffer = p.bufferNamed("gradients");
  forwardOps.assign(p.parameters.size(), -1);
  backwardOps.assign(p.parameters.size(), -1);
  touched = std::vector<std::atomic<bool>>(p.parameters.size());
  for (size_t i = 0; i < p.ops.size(); ++i) {
    const StepOp &op = p.ops[i];
    const int index = static_cast<int>(i);
    if (op.kind == OpKind::Backward) backwardOps[static_cast<size_t>(op.parameter)] = index;
    if (op.kind == OpKind::Finish) finishOp = index;
    if (op.kind == OpKind::Accumulate) accumulateOp = index;
    if (op.kind == OpKind::Scale) scaleBuffer = op.uses[1].span.buffer;
    if (op.kind != OpKind::Forward) continue;
    const Span &span = op.uses[0].span;
    for (size_t j = 0; j < p.parameters.size(); ++j)
      if (p.parameters[j].begin >= span.begin && p.parameters[j].begin < span.begin + span.count) forwardOps[j] = index;
  }
}

Operand Engine::parameter(int i) const {
  const PlanParameter &p = plan().parameters[static_cast<size_t>(i)];
  return executor->operand({parameterBuffer, p.begin, p.elements(), Part::Whole});
}

Status Engine::start() {
  const PlanBuffer &buffer = plan().buffers[static_cast<size_t>(parameterBuffer)];
  const Collective all{OpKind::Broadcast,   executor->data(parameterBuffer), buffer.elementsOn(0), buffer.type, 0, 0,
                       "initial parameters"};
  if (Status status = told(device.synchronize()); !status) return status; // the host's values are there
  if (Status status = transport.run(all); !status) return status;
  if (Status status = told(device.synchronize()); !status) return status;
  for (const StepOp &op : plan().ops) {
    if (op.kind != OpKind::AdamW || op.uses.size() < 6 || (op.rank >= 0 && op.rank != transport.rank())) continue;
    const Operand operands[] = {executor->operand(op.uses[2].span), executor->operand(op.uses[5].span)};
    if (Status status = told(device.run(Lane::Compute, {OpKind::Convert, operands, {}, nullptr, plan().worldSize, -1}));
        !status)
      return status;
  }
  if (Status status = told(device.synchronize()); !status) return status;
  started = true;
  return transport.status();
}

void Engine::restored(int64_t updates) {
  started = true;
  updateCount = updates;
}

Status Engine::waitParameter(int i) {
  const int op = forwardOps[static_cast<size_t>(i)];
  return op < 0 ? executor->status() : executor->waitFor(op);
}

GradientView Engine::gradient(int i) const {
  const PlanParameter &p = plan().parameters[static_cast<size_t>(i)];
  const Operand operand = executor->operand({gradientBuffer, p.begin, p.elements(), Part::Whole});
  return {operand.data, operand.elements, operand.type, touched[static_cast<size_t>(i)].load()};
}

Status Engine::gradReady(int i) {
  if (!started) return fail(Stage::Input, "engine: gradReady before start");
  touched[static_cast<size_t>(i)] = true;
  if (microBatch + 1 < plan().accumulation) return executor->status();
  return executor->done(backwardOps[static_cast<size_t>(i)]);
}

Status Engine::endMicroBatch() {
  if (microBatch + 1 > plan().accumulation)
    return fail(Stage::Input,
                fmt::format("engine: more than {} micro-batches in step {}", plan().accumulation, executor->step()),
                "call finishStep after the last one");
  ++microBatch;
  if (microBatch == plan().accumulation - 1 && accumulateOp >= 0) return executor->done(accumulateOp);
  return executor->status();
}

/// An error of the device: what comes after it would wait for ever on the other ranks.
Status Engine::told(Status status) {
  if (!status) executor->failWith(status.error());
  return status;
}

Expected<StepReport> Engine::finishStep(double tokens, StepSettings settings, std::span<const double> sums) {
  if (!started) return fail(Stage::Input, "engine: finishStep before start");
  if (!(tokens >= 0) || !std::isfinite(tokens))
    return fail(Stage::Input, fmt::format("engine: a step of {} tokens", tokens));
  const Operand scalars = executor->operand(plan().ops[static_cast<size_t>(finishOp)].uses[1].span);
  if (static_cast<int64_t>(sums.size()) + 1 != scalars.elements)
    return fail(Stage::Input,
                fmt::format("engine: {} sums of the host; the plan has {}", sums.size(), scalars.elements - 1),
                "StrategyOptions::hostSums says how many");
  // A rank with less data than others has no last micro-batch: what it has is all there is.
  if (accumulateOp >= 0 && !executor->isDone(accumulateOp))
    if (Status s = executor->done(accumulateOp); !s) return propagate(s);
  for (int i = 0; i < parameters(); ++i) {
    const int op = backwardOps[static_cast<size_t>(i)];
    if (executor->isDone(op)) continue;
    const GradientView view = gradient(i);
    if (!view.add)
      if (Status s = told(device.clear(view.data, view.elements * sizeInBytes(view.type))); !s) return propagate(s);
    if (Status s = executor->done(op); !s) return propagate(s);
  }
  for (const StepOp &op : plan().ops)
    if (op.kind == OpKind::Forward) {
      const int index = static_cast<int>(&op - plan().ops.data());
      if (Status s = executor->waitFor(index); !s) return propagate(s);
      if (Status s = executor->done(index); !s) return propagate(s);
    }
  std::vector<double> numbers(sums.begin(), sums.end());
  numbers.push_back(tokens);
  const int64_t numberBytes = static_cast<int64_t>(numbers.size() * sizeof(double));
  if (Status s = told(device.fromHost(scalars.data, numbers.data(), numberBytes)); !s) return propagate(s);
  if (Status s = executor->done(finishOp); !s) return propagate(s);
  settings.step = updateCount + 1;
  if (Status s = executor->runCompute(settings); !s) return propagate(s);

  double scale[2] = {};
  if (Status s = told(device.toHost(scale, executor->data(scaleBuffer), sizeof(scale))); !s) return propagate(s);
  if (Status s = told(device.toHost(numbers.data(), scalars.data, numberBytes)); !s) return propagate(s);
  // What was enqueued may have failed since.
  if (Status s = transport.status(); !s) return propagate(s);
  for (std::atomic<bool> &t : touched)
    t = false;
  microBatch = 0;
  StepReport report{numbers.back(), scale[1], scale[0] < 0, {}};
  numbers.pop_back();
  report.sums = std::move(numbers);
  if (!report.skipped) ++updateCount;
  if (report.skipped && settings.nonFinite == StepSettings::NonFinite::Stop)
    return fail(Stage::Launch,
                fmt::format("step {}: the gradients' norm is {}; nothing was updated", settings.step, report.norm),
                "lower the learning rate, look at the data, or let such steps be skipped");
  return report;
}

Status Engine::synchronize() {
  if (Status s = executor->drain(); !s) return s;
  if (Status s = told(device.synchronize()); !s) return s;
  return transport.status();
}

} // namespace tilewright::dist
