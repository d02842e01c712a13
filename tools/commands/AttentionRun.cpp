#include "AttentionRun.h"

#include "../bench/DeviceBuffers.h"
#include "Console.h"
#include "tilewright/cuda/Stream.h"
#include "tilewright/tensor/AlignedBuffer.h"
#include <algorithm>
#include <chrono>
#include <fmt/format.h>

namespace tilewright::tool {
namespace {

/// Launches are repeated until both are reached; long kernels run few times.
constexpr int kMinRepeats = 3, kMaxRepeats = 30;
constexpr double kTimingBudgetMs = 300;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Times `once`, which returns the milliseconds of one launch. The first launch is a warm-up.
template <class Once> Expected<double> timeLaunches(Once &&once) {
  Expected<double> first = once();
  if (!first) return first;
  std::vector<double> times;
  double spent = 0;
  while (static_cast<int>(times.size()) < kMaxRepeats &&
         (static_cast<int>(times.size()) < kMinRepeats || spent < kTimingBudgetMs)) {
    if (*first > 2000 && !times.empty()) break;
    Expected<double> ms = once();
    if (!ms) return ms;
    times.push_back(*ms);
    spent += *ms;
  }
  return median(times);
}

struct Outputs {
  Tensor AttentionRun::*tensor;
  const char *name;
  TensorShape shape;
  TensorRef KernelArgs::*argument;
};

std::vector<Outputs> outputsOf(const Problem &p) {
  std::vector<Outputs> outputs = {{&AttentionRun::o, "o", shapeOfO(p), &KernelArgs::o}};
  if (p.direction == Direction::Backward) {
    outputs.push_back({&AttentionRun::dQ, "dq", shapeOfQ(p), &KernelArgs::dQ});
    outputs.push_back({&AttentionRun::dK, "dk", shapeOfK(p), &KernelArgs::dK});
    outputs.push_back({&AttentionRun::dV, "dv", shapeOfV(p), &KernelArgs::dV});
  }
  return outputs;
}

Status allocateOutputs(const Problem &p, AttentionRun &run) {
  for (const Outputs &output : outputsOf(p)) {
    Expected<Tensor> tensor = Tensor::zeros(elementType(p.dtype), output.shape, p.layout, output.name);
    if (!tensor) return propagate(tensor);
    run.*output.tensor = std::move(*tensor);
  }
  Expected<Tensor> lse = Tensor::zeros(ElementType::F32, shapeOfLse(p), Layout::BHSD, "lse");
  if (!lse) return propagate(lse);
  run.lse = std::move(*lse);
  return {};
}

/// What a problem computes.
std::vector<Direction> directionsOf(const Problem &p) {
  if (p.direction == Direction::Forward) return {Direction::Forward};
  return {Direction::Forward, Direction::Backward};
}

Status runOnCpu(const ProblemInputs &inputs, const Attention &attention, AttentionRun &run) {
  const Problem &p = inputs.problem;
  KernelArgs args = argsFor(p);
  args.q = inputs.tensors.q.ref();
  args.k = inputs.tensors.k.ref();
  args.v = inputs.tensors.v.ref();
  args.dO = inputs.tensors.dO.ref();
  for (const Outputs &output : outputsOf(p))
    args.*output.argument = (run.*output.tensor).ref();
  args.lse = static_cast<float *>(run.lse.data());
  Tensor rest;
  if (p.direction == Direction::Backward) {
    Expected<Tensor> made = Tensor::zeros(ElementType::F32, shapeOfLse(p), Layout::BHSD, "lse_rest");
    if (!made) return propagate(made);
    rest = std::move(*made);
    args.lseRest = static_cast<float *>(rest.data());
  }
  for (size_t i = 0; i < inputs.tables.size(); ++i)
    args.tables[i] = inputs.tables[i].ref();

  std::vector<AlignedBuffer> workspaces;
  for (Direction direction : directionsOf(p)) {
    Expected<AlignedBuffer> made = AlignedBuffer::zeros(attention.workspaceBytes(direction, args), "workspace");
    if (!made) return propagate(made);
    workspaces.push_back(std::move(*made));
    attention.useWorkspace(direction, workspaces.back().data(), args);
  }

  for (KernelRun &kernel : run.kernels) {
    Progress progress(fmt::format("{} on the CPU", toString(kernel.kernel.plan().role)));
    Expected<double> ms = timeLaunches([&]() -> Expected<double> {
      auto start = std::chrono::steady_clock::now();
      if (Status status = attention.launch(kernel.kernel, nullptr, args); !status) return propagate(status);
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    });
    if (!ms) return propagate(ms);
    kernel.milliseconds = *ms;
  }
  return {};
}

Status runOnGpu(const ProblemInputs &inputs, const Attention &attention, AttentionRun &run,
                std::shared_ptr<const cuda::Device> device) {
  const Problem &p = inputs.problem;
  bench::DeviceBuffers buffers(device);
  KernelArgs args = argsFor(p);
  const RandomTensors &t = inputs.tensors;
  std::pair<const Tensor *, TensorRef *> uploads[] = {
      {&t.q, &args.q}, {&t.k, &args.k}, {&t.v, &args.v}, {&t.dO, &args.dO}};
  for (auto &[tensor, ref] : uploads) {
    Expected<TensorRef> uploaded = buffers.upload(*tensor);
    if (!uploaded) return propagate(uploaded);
    *ref = *uploaded;
  }
  for (const Outputs &output : outputsOf(p)) {
    const Tensor &tensor = run.*output.tensor;
    Expected<void *> address = buffers.poisoned(tensor.bytes());
    if (!address) return propagate(address);
    args.*output.argument = tensor.ref();
    (args.*output.argument).data = *address;
  }
  Expected<void *> lse = buffers.poisoned(run.lse.bytes());
  if (!lse) return propagate(lse);
  args.lse = static_cast<float *>(*lse);
  if (p.direction == Direction::Backward) {
    Expected<void *> rest = buffers.poisoned(run.lse.bytes());
    if (!rest) return propagate(rest);
    args.lseRest = static_cast<float *>(*rest);
  }
  for (Direction direction : directionsOf(p)) {
    Expected<void *> workspace = buffers.poisoned(attention.workspaceBytes(direction, args));
    if (!workspace) return propagate(workspace);
    attention.useWorkspace(direction, *workspace, args);
  }
  for (size_t i = 0; i < inputs.tables.size(); ++i) {
    Expected<TableRef> table = buffers.upload(inputs.tables[i]);
    if (!table) return propagate(table);
    args.tables[i] = *table;
  }

  Expected<cuda::Stream> stream = cuda::Stream::create(device);
  if (!stream) return propagate(stream);
  Expected<cuda::Event> start = cuda::Event::create(device), stop = cuda::Event::create(device);
  if (!start) return propagate(start);
  if (!stop) return propagate(stop);
  if (int64_t bytes = partialsBytes(run.forward().kernel.plan(), args)) {
    Expected<void *> partials = buffers.poisoned(bytes);
    if (!partials) return propagate(partials);
    args.partials = static_cast<float *>(*partials);
  }
  if (Status status = device->synchronize(); !status) return status; // uploads went through the default stream
  for (KernelRun &kernel : run.kernels) {
    Expected<double> ms = timeLaunches([&]() -> Expected<double> {
      if (Status status = start->record(stream->handle()); !status) return propagate(status);
      if (Status status = attention.launch(kernel.kernel, stream->handle(), args); !status) return propagate(status);
      if (Status status = stop->record(stream->handle()); !status) return propagate(status);
      if (Status status = stop->synchronize(); !status) return propagate(status);
      return stop->millisecondsSince(*start);
    });
    if (!ms) return propagate(ms);
    kernel.milliseconds = *ms;
  }
  if (Status status = stream->synchronize(); !status) return status;
  for (const Outputs &output : outputsOf(p))
    if (Status status = buffers.download((args.*output.argument).data, run.*output.tensor); !status) return status;
  return buffers.download(args.lse, run.lse);
}

} // namespace

double AttentionRun::forwardMs() const {
  double sum = 0;
  for (const KernelRun &kernel : kernels)
    if (isForward(kernel.kernel.plan().role)) sum += kernel.milliseconds;
  return sum;
}

double AttentionRun::backwardMs() const {
  double sum = 0;
  for (const KernelRun &kernel : kernels)
    if (!isForward(kernel.kernel.plan().role)) sum += kernel.milliseconds;
  return sum;
}

bool AttentionRun::allHits() const {
  return std::all_of(kernels.begin(), kernels.end(), [](const KernelRun &k) { return k.kernel.report().cacheHit(); });
}

double AttentionRun::compileMs() const {
  double sum = 0;
  for (const KernelRun &kernel : kernels)
    sum += kernel.kernel.report().generateMs + kernel.kernel.report().compileMs;
  return sum;
}

AttentionOutputs AttentionRun::outputs() const { return {o.view(), lse.view(), dQ.view(), dK.view(), dV.view()}; }

Expected<AttentionRun> runAttention(Context &context, const ProblemInputs &inputs, const Target &target,
                                    const ScheduleOverrides &overrides, int device) {
  Expected<Attention> attention = [&] {
    Progress progress("preparing the kernels");
    return Attention::prepare(context, inputs.problem, target, overrides, {.device = device});
  }();
  if (!attention) return propagate(attention);
  AttentionRun run;
  for (size_t i = 0; i < attention->kernels().size(); ++i)
    run.kernels.push_back({attention->kernels()[i], attention->choices()[i].origin, attention->choices()[i].from});
  if (Status status = allocateOutputs(inputs.problem, run); !status) return propagate(status);
  if (target.isCpu()) {
    if (Status status = runOnCpu(inputs, *attention, run); !status) return propagate(status);
    return run;
  }
  Expected<std::shared_ptr<const cuda::Device>> opened = context.device(device);
  if (!opened) return propagate(opened);
  if (Status status = runOnGpu(inputs, *attention, run, *opened); !status) return propagate(status);
  return run;
}

} // namespace tilewright::tool
