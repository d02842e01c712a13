#include "tilewright/distributed/engine/StepExecutor.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright::dist {

StepExecutor::StepExecutor(StepPlan plan, Transport &transport, ComputeDevice &device)
    : stepPlan(std::move(plan)), transport(transport), device(device), decay(stepPlan.ops.size()),
      doneSteps(stepPlan.ops.size()) {}

Expected<std::unique_ptr<StepExecutor>> StepExecutor::create(StepPlan plan, Transport &transport,
                                                             ComputeDevice &device) {
  if (plan.worldSize != transport.worldSize())
    return fail(Stage::Plan, fmt::format("the plan is for {} ranks, the transport connects {}", plan.worldSize,
                                         transport.worldSize()));
  std::unique_ptr<StepExecutor> executor(new StepExecutor(std::move(plan), transport, device));
  if (Status status = executor->allocate(); !status) return propagate(status);
  executor->communication = std::thread([e = executor.get()] { e->communicate(); });
  return executor;
}

Status StepExecutor::allocate() {
  for (const PlanBuffer &buffer : stepPlan.buffers) {
    const int64_t bytes = buffer.elementsOn(transport.rank()) * sizeInBytes(buffer.type);
    memory.push_back(nullptr);
    if (buffer.category == Category::Activations) continue;
    Expected<void *> data = travels(static_cast<int>(memory.size()) - 1) ? transport.allocate(bytes, buffer.name)
                                                                         : Expected<void *>(nullptr);
    if (data && !*data) data = device.allocate(bytes, buffer.name);
    if (!data) return propagate(data);
    memory.back() = *data;
    allocatedBytes.bytes[static_cast<size_t>(buffer.category)] += bytes;
  }
  for (size_t i = 0; i < stepPlan.ops.size(); ++i) {
    const StepOp &op = stepPlan.ops[i];
    if (op.kind != OpKind::AdamW) continue;
    const Span span = partOf(op.uses[2].span, stepPlan.worldSize, transport.rank());
    for (const PlanParameter &p : stepPlan.parameters) {
      const int64_t begin = std::max(span.begin, p.begin),
                    end = std::min(span.begin + span.count, p.begin + p.elements());
      if (begin < end) decay[i].push_back({begin - span.begin, end - begin, p.weightDecay});
    }
    // Parameters lie in the arena in another order than they were registered in.
    std::sort(decay[i].begin(), decay[i].end(),
              [](const DecayRange &a, const DecayRange &b) { return a.begin < b.begin; });
  }
  return {};
}

bool StepExecutor::travels(int buffer) const {
  return std::any_of(stepPlan.ops.begin(), stepPlan.ops.end(), [&](const StepOp &op) {
    return op.kind >= OpKind::AllReduce && op.uses.front().span.buffer == buffer;
  });
}

StepExecutor::~StepExecutor() {
  bool midStep;
  {
    std::lock_guard lock(mutex);
    midStep = !failure && std::any_of(doneSteps.begin(), doneSteps.end(), [&](int64_t s) { return s == currentStep; });
  }
  if (midStep)
    transport.abort("its engine was closed in the middle of a step");
  else
    (void)drain();
  {
    std::lock_guard lock(mutex);
    stopping = true;
    changed.notify_all();
  }
  if (communication.joinable()) communication.join();
}

Operand StepExecutor::operand(const Span &span) const {
  const Span part = partOf(span, stepPlan.worldSize, transport.rank());
  const PlanBuffer &buffer = stepPlan.buffers[static_cast<size_t>(span.buffer)];
  return {static_cast<char *>(data(span.buffer)) + part.begin * sizeInBytes(buffer.type), part.count, buffer.type};
}

int64_t StepExecutor::step() const {
  std::lock_guard lock(mutex);
  return currentStep;
}

Status StepExecutor::status() const {
  {
    std::lock_guard lock(mutex);
    if (failure) return tl::unexpected<Error>(*failure);
  }
  return transport.status();
}

bool StepExecutor::isDone(int op) const {
  std::lock_guard lock(mutex);
  return doneSteps[static_cast<size_t>(op)] >= currentStep;
}

bool StepExecutor::waitUntilReady(const StepOp &op, int64_t step) {
  std::unique_lock lock(mutex);
  for (const Wait &wait : op.waits) {
    const int64_t needed = wait.previousStep ? step - 1 : step;
    changed.wait(lock, [&] { return stopping || failure || doneSteps[static_cast<size_t>(wait.op)] >= needed; });
    if (stopping || failure) return false;
  }
  return true;
}

Status StepExecutor::waitFor(int hostOp) {
  const StepOp &op = stepPlan.ops[static_cast<size_t>(hostOp)];
  // What the host itself does it need not be told; and step() is the caller's own step.
  StepOp others{op.name};
  for (const Wait &wait : op.waits)
    if (stepPlan.ops[static_cast<size_t>(wait.op)].lane != Lane::Host) others.waits.push_back(wait);
  if (!waitUntilReady(others, step())) return status();
  for (const Wait &wait : others.waits)
    if (Status s = device.wait(Lane::Host, wait.op); !s) {
      failWith(s.error());
      return s;
    }
  return status();
}

Status StepExecutor::done(int hostOp) {
  if (Status s = device.record(Lane::Host, hostOp); !s) {
    failWith(s.error());
    return s;
  }
  std::lock_guard lock(mutex);
  if (failure) return tl::unexpected<Error>(*failure);
  int64_t &last = doneSteps[static_cast<size_t>(hostOp)];
  if (last >= currentStep)
    return fail(Stage::Input, fmt::format("{} was reported as done twice in step {}",
                                          stepPlan.ops[static_cast<size_t>(hostOp)].name, currentStep));
  last = currentStep;
  changed.notify_all();
  return {};
}

Status StepExecutor::runCompute(const StepSettings &settings) {
  const int64_t now = step();
  for (size_t i = 0; i < stepPlan.ops.size(); ++i)
    if (stepPlan.ops[i].lane == Lane::Compute && !runOp(static_cast<int>(i), now, &settings)) return status();
  std::lock_guard lock(mutex);
  ++currentStep;
  return {};
}

void StepExecutor::communicate() {
  std::vector<int> ops;
  for (size_t i = 0; i < stepPlan.ops.size(); ++i)
    if (stepPlan.ops[i].lane == Lane::Communication) ops.push_back(static_cast<int>(i));
  auto groupOf = [&](size_t i) {
    return i < ops.size() ? std::string_view(stepPlan.ops[static_cast<size_t>(ops[i])].group) : std::string_view();
  };
  for (int64_t step = 1; !ops.empty(); ++step)
    for (size_t i = 0, end; i < ops.size(); i = end) {
      for (end = i + 1; !groupOf(i).empty() && groupOf(end) == groupOf(i);)
        ++end;
      if (groupOf(i).empty() ? !runOp(ops[i], step, nullptr) : !runGroup({ops.data() + i, end - i}, step)) return;
    }
}

bool StepExecutor::runOp(int index, int64_t step, const StepSettings *settings) {
  if (!waitUntilReady(stepPlan.ops[static_cast<size_t>(index)], step)) return false;
  Status status = execute(index, settings);
  return status ? finish({&index, 1}, step) : (failWith(std::move(status.error())), false);
}

/// A group's ops start when it ends: only then is there work that an event could follow.
bool StepExecutor::runGroup(std::span<const int> ops, int64_t step) {
  Status status = transport.beginGroup();
  for (size_t i = 0; status && i < ops.size(); ++i) {
    if (!waitUntilReady(stepPlan.ops[static_cast<size_t>(ops[i])], step)) return false;
    status = execute(ops[i], nullptr);
  }
  if (status) status = transport.endGroup();
  return status ? finish(ops, step) : (failWith(std::move(status.error())), false);
}

bool StepExecutor::finish(std::span<const int> ops, int64_t step) {
  for (int index : ops) {
    const StepOp &op = stepPlan.ops[static_cast<size_t>(index)];
    if (op.rank >= 0 && op.rank != transport.rank()) continue;
    if (Status s = device.record(op.lane, index); !s) return failWith(std::move(s.error())), false;
  }
  std::lock_guard lock(mutex);
  if (failure) return false;
  for (int index : ops)
    doneSteps[static_cast<size_t>(index)] = step;
  changed.notify_all();
  return true;
}

Status StepExecutor::execute(int index, const StepSettings *settings) {
  const StepOp &op = stepPlan.ops[static_cast<size_t>(index)];
  const int rank = transport.rank();
  if (op.rank >= 0 && op.rank != rank) return {};
  for (const Wait &wait : op.waits)
    if (stepPlan.ops[static_cast<size_t>(wait.op)].lane != op.lane)
      if (Status s = device.wait(op.lane, wait.op); !s) return s;
  if (op.kind >= OpKind::AllReduce) {
    const Operand data = operand(op.uses.front().span);
    return transport.run({op.kind, data.data, data.elements, data.type, op.root, op.peer, op.name});
  }
  std::vector<Operand> operands;
  for (const Use &use : op.uses)
    operands.push_back(operand(use.span));
  const int shard = op.uses.front().span.part == Part::Shard ? rank : -1;
  return device.run(op.lane,
                    {op.kind, operands, decay[static_cast<size_t>(index)], settings, stepPlan.worldSize, shard});
}

void StepExecutor::failWith(Error error) {
  // The others cannot know what failed here, and would wait for it. What the transport reports they know.
  if (transport.status()) transport.abort(error.message);
  std::lock_guard lock(mutex);
  if (!failure) failure = std::move(error);
  changed.notify_all();
}

Status StepExecutor::drain() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] {
    if (stopping || failure) return true;
    for (size_t i = 0; i < stepPlan.ops.size(); ++i)
      if (stepPlan.ops[i].lane == Lane::Communication && doneSteps[i] < currentStep - 1) return false;
    return true;
  });
  if (failure) return tl::unexpected<Error>(*failure);
  return {};
}

} // namespace tilewright::dist
