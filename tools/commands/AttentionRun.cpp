#include "AttentionRun.h"

#include "Console.h"
#include "tilewright/cuda/DeviceMemory.h"
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

Status runOnCpu(const ProblemInputs &inputs, AttentionRun &run) {
  const Problem &p = inputs.problem;
  KernelArgs args = argsFor(p);
  args.q = inputs.tensors.q.ref();
  args.k = inputs.tensors.k.ref();
  args.v = inputs.tensors.v.ref();
  args.dO = inputs.tensors.dO.ref();
  for (const Outputs &output : outputsOf(p)) args.*output.argument = (run.*output.tensor).ref();
  args.lse = static_cast<float *>(run.lse.data());
  Tensor delta, rest;
  if (p.direction == Direction::Backward) {
    std::tuple<Tensor &, float *&, const char *> workspaces[] = {{delta, args.delta, "delta"},
                                                                 {rest, args.lseRest, "lse_rest"}};
    for (auto &[tensor, argument, name] : workspaces) {
      Expected<Tensor> made = Tensor::zeros(ElementType::F32, shapeOfLse(p), Layout::BHSD, name);
      if (!made) return propagate(made);
      tensor = std::move(*made);
      argument = static_cast<float *>(tensor.data());
    }
  }
  for (size_t i = 0; i < inputs.tables.size(); ++i) args.tables[i] = inputs.tables[i].ref();

  Expected<AlignedBuffer> partials = AlignedBuffer::zeros(partialsBytes(run.forward().kernel.plan(), args), "partials");
  if (!partials) return propagate(partials);
  args.partials = partials->as<float>();

  for (KernelRun &kernel : run.kernels) {
    Progress progress(fmt::format("{} on the CPU", toString(kernel.kernel.plan().role)));
    Expected<double> ms = timeLaunches([&]() -> Expected<double> {
      auto start = std::chrono::steady_clock::now();
      if (Status status = kernel.kernel.run(args); !status) return propagate(status);
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    });
    if (!ms) return propagate(ms);
    kernel.milliseconds = *ms;
  }
  return {};
}

/// Device copies of everything a run touches.
class DeviceBuffers {
public:
  explicit DeviceBuffers(std::shared_ptr<const cuda::Device> device) : device(std::move(device)) {}

  /// Memory of its own for a host tensor; the view keeps the host's strides.
  Expected<TensorRef> upload(const Tensor &tensor) {
    if (!tensor.valid()) return TensorRef{};
    Expected<void *> address = allocate(tensor.bytes());
    if (!address) return propagate(address);
    if (Status status = buffers.back().copyFromHost(tensor.data(), tensor.bytes()); !status) return propagate(status);
    TensorRef ref = tensor.ref();
    ref.data = *address;
    return ref;
  }

  Expected<void *> uploadBytes(const void *data, int64_t bytes) {
    Expected<void *> address = allocate(bytes);
    if (!address) return address;
    if (Status status = buffers.back().copyFromHost(data, bytes); !status) return propagate(status);
    return address;
  }

  /// Filled with NaN patterns, so that what a kernel fails to write does not pass for a result.
  Expected<void *> poisoned(int64_t bytes) {
    Expected<void *> address = allocate(bytes);
    if (!address) return address;
    if (Status status = buffers.back().fill(0xff); !status) return propagate(status);
    return address;
  }

  Status download(const void *address, Tensor &tensor) {
    for (const cuda::DeviceMemory &buffer : buffers)
      if (buffer.data() == address) return buffer.copyToHost(tensor.data(), tensor.bytes());
    return {};
  }

private:
  Expected<void *> allocate(int64_t bytes) {
    // A kernel may be handed an empty tensor, never a null one.
    Expected<cuda::DeviceMemory> memory = cuda::DeviceMemory::allocate(device, std::max<int64_t>(bytes, 16));
    if (!memory) return propagate(memory);
    buffers.push_back(std::move(*memory));
    return buffers.back().data();
  }

  std::shared_ptr<const cuda::Device> device;
  std::vector<cuda::DeviceMemory> buffers;
};

Expected<TableRef> uploadTable(DeviceBuffers &buffers, const Table &table) {
  TableRef ref = table.ref();
  int64_t rows = table.shape().size() == 2 ? table.shape()[0] : 1, extent = table.extent();
  Expected<void *> data = buffers.uploadBytes(ref.data, rows * extent * 4);
  if (!data) return propagate(data);
  ref.data = *data;
  if (ref.tileMin) {
    int64_t entries = rows * ((extent + kTableExtentTile - 1) / kTableExtentTile);
    Expected<void *> low = buffers.uploadBytes(ref.tileMin, entries * 4);
    if (!low) return propagate(low);
    Expected<void *> high = buffers.uploadBytes(ref.tileMax, entries * 4);
    if (!high) return propagate(high);
    ref.tileMin = static_cast<const int32_t *>(*low);
    ref.tileMax = static_cast<const int32_t *>(*high);
  }
  return ref;
}

Status runOnGpu(const ProblemInputs &inputs, AttentionRun &run, std::shared_ptr<const cuda::Device> device) {
  const Problem &p = inputs.problem;
  DeviceBuffers buffers(device);
  KernelArgs args = argsFor(p);
  const RandomTensors &t = inputs.tensors;
  std::pair<const Tensor *, TensorRef *> uploads[] = {{&t.q, &args.q}, {&t.k, &args.k}, {&t.v, &args.v}, {&t.dO, &args.dO}};
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
  if (p.direction == Direction::Backward)
    for (float **workspace : {&args.delta, &args.lseRest}) {
      Expected<void *> rows = buffers.poisoned(run.lse.bytes());
      if (!rows) return propagate(rows);
      *workspace = static_cast<float *>(*rows);
    }
  for (size_t i = 0; i < inputs.tables.size(); ++i) {
    Expected<TableRef> table = uploadTable(buffers, inputs.tables[i]);
    if (!table) return propagate(table);
    args.tables[i] = *table;
  }

  Expected<cuda::Stream> stream = cuda::Stream::create(device);
  if (!stream) return propagate(stream);
  Expected<cuda::Event> start = cuda::Event::create(device), stop = cuda::Event::create(device);
  if (!start) return propagate(start);
  if (!stop) return propagate(stop);
  if (Status status = device->synchronize(); !status) return status; // uploads went through the default stream
  cuda::DeviceMemory sums;
  for (KernelRun &kernel : run.kernels) {
    const KernelPlan &plan = kernel.kernel.plan();
    if (plan.role == KernelRole::Fused) {
      Expected<cuda::DeviceMemory> allocated = cuda::DeviceMemory::allocate(device, dqSumsBytes(plan, args));
      if (!allocated) return propagate(allocated);
      sums = std::move(*allocated);
      args.dqSums = static_cast<float *>(sums.data());
    }
    Expected<double> ms = timeLaunches([&]() -> Expected<double> {
      if (Status status = start->record(stream->handle()); !status) return propagate(status);
      // Every launch adds to the sums, so clearing them is part of its work.
      if (plan.role == KernelRole::Fused)
        if (Status status = sums.fill(0, stream->handle()); !status) return propagate(status);
      if (Status status = kernel.kernel.launch(stream->handle(), args); !status) return propagate(status);
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

static bool isForward(const KernelRun &kernel) {
  const KernelRole role = kernel.kernel.plan().role;
  return role == KernelRole::Forward || role == KernelRole::Merge;
}

double AttentionRun::forwardMs() const {
  double sum = 0;
  for (const KernelRun &kernel : kernels)
    if (isForward(kernel)) sum += kernel.milliseconds;
  return sum;
}

double AttentionRun::backwardMs() const {
  double sum = 0;
  for (const KernelRun &kernel : kernels)
    if (!isForward(kernel)) sum += kernel.milliseconds;
  return sum;
}

bool AttentionRun::allHits() const {
  return std::all_of(kernels.begin(), kernels.end(), [](const KernelRun &k) { return k.kernel.report().cacheHit(); });
}

double AttentionRun::compileMs() const {
  double sum = 0;
  for (const KernelRun &kernel : kernels) sum += kernel.kernel.report().generateMs + kernel.kernel.report().compileMs;
  return sum;
}

AttentionOutputs AttentionRun::outputs() const { return {o.view(), lse.view(), dQ.view(), dK.view(), dV.view()}; }

Expected<std::vector<KernelPlan>> plansOf(const Problem &problem, const Target &target,
                                          const ScheduleOverrides &overrides) {
  std::vector<KernelRole> roles = {KernelRole::Forward};
  if (problem.direction == Direction::Backward) {
    Expected<std::vector<KernelRole>> backward = backwardRoles(problem, target, overrides);
    if (!backward) return propagate(backward);
    roles.insert(roles.end(), backward->begin(), backward->end());
  }
  std::vector<KernelPlan> plans;
  for (KernelRole role : roles) {
    Problem own = problem;
    if (role == KernelRole::Forward) own.direction = Direction::Forward; // the same kernel with and without gradients
    Expected<KernelPlan> plan = KernelPlan::make(own, target, role, overrides);
    if (!plan) return propagate(plan);
    plans.push_back(std::move(*plan));
    if (role != KernelRole::Forward || forwardRoles(plans.back().schedule).size() == 1) continue;
    Expected<KernelPlan> merge = KernelPlan::make(own, target, KernelRole::Merge, overrides);
    if (!merge) return propagate(merge);
    plans.push_back(std::move(*merge));
  }
  return plans;
}

Expected<AttentionRun> runAttention(Context &context, const ProblemInputs &inputs, const Target &target,
                                    const ScheduleOverrides &overrides, int device) {
  Expected<std::vector<KernelPlan>> plans = plansOf(inputs.problem, target, overrides);
  if (!plans) return propagate(plans);
  AttentionRun run;
  for (const KernelPlan &plan : *plans) {
    Progress progress(fmt::format("preparing the {} kernel", toString(plan.role)));
    Expected<Kernel> kernel = context.prepare(plan, {.device = device});
    if (!kernel) return propagate(kernel);
    run.kernels.push_back({*kernel});
  }
  if (Status status = allocateOutputs(inputs.problem, run); !status) return propagate(status);
  if (target.isCpu()) {
    if (Status status = runOnCpu(inputs, run); !status) return propagate(status);
    return run;
  }
  Expected<std::shared_ptr<const cuda::Device>> opened = context.device(device);
  if (!opened) return propagate(opened);
  if (Status status = runOnGpu(inputs, run, *opened); !status) return propagate(status);
  return run;
}

} // namespace tilewright::tool
