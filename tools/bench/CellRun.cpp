#include "CellRun.h"
#include "tilewright/tensor/TensorShape.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright::bench {
namespace {

/// Strides of a contiguous tensor in a layout.
TensorRef refOf(void *data, const TensorShape &shape, Layout layout) {
  if (layout == Layout::BSHD) return {data, shape.rows * shape.heads * shape.dim, shape.dim, shape.heads * shape.dim};
  return {data, shape.heads * shape.rows * shape.dim, shape.rows * shape.dim, shape.dim};
}

} // namespace

Expected<void *> CellRun::allocate(int64_t bytes) {
  Expected<cuda::DeviceMemory> made = cuda::DeviceMemory::allocate(device, std::max<int64_t>(bytes, 16));
  if (!made) return propagate(made);
  memory.push_back(std::move(*made));
  return memory.back().data();
}

Expected<CellRun> CellRun::make(std::shared_ptr<const cuda::Device> device, LaunchTimer &timer, const Problem &problem,
                                std::vector<Kernel> kernels) {
  CellRun run;
  run.device = std::move(device);
  run.backward = problem.direction == Direction::Backward;
  run.kernels = std::move(kernels);
  KernelArgs &args = run.args;
  args = argsFor(problem);

  struct Part {
    TensorRef *ref;
    TensorShape shape;
    bool input, gradient;
  };
  const Part parts[] = {{&args.q, shapeOfQ(problem), true, false},  {&args.k, shapeOfK(problem), true, false},
                        {&args.v, shapeOfV(problem), true, false},  {&args.o, shapeOfO(problem), false, false},
                        {&args.dO, shapeOfO(problem), true, true},  {&args.dQ, shapeOfQ(problem), false, true},
                        {&args.dK, shapeOfK(problem), false, true}, {&args.dV, shapeOfV(problem), false, true}};
  uint64_t seed = 1;
  for (const Part &part : parts) {
    if (part.gradient && !run.backward) continue;
    Expected<int64_t> elements = part.shape.elements();
    if (!elements) return propagate(elements);
    Expected<void *> data = run.allocate(*elements * sizeInBytes(problem.dtype));
    if (!data) return propagate(data);
    *part.ref = refOf(*data, part.shape, problem.layout);
    if (part.input)
      if (Status status = timer.fillNormal(run.memory.back(), problem.dtype, seed++); !status) return propagate(status);
  }
  Expected<int64_t> rows = shapeOfLse(problem).elements();
  if (!rows) return propagate(rows);
  // Gradients are measured as `run` computes them, with what rounding LSE left out.
  for (float **row : {&args.lse, &args.delta, &args.lseRest}) {
    if (!run.backward && row != &args.lse) continue;
    Expected<void *> data = run.allocate(*rows * 4);
    if (!data) return propagate(data);
    *row = static_cast<float *>(*data);
  }
  for (const Kernel &kernel : run.kernels)
    if (kernel.plan().role == KernelRole::Fused) {
      Expected<cuda::DeviceMemory> made = cuda::DeviceMemory::allocate(run.device, dqSumsBytes(kernel.plan(), args));
      if (!made) return propagate(made);
      run.sums = std::move(*made);
      args.dqSums = static_cast<float *>(run.sums.data());
    }
  if (run.backward)
    if (Status status = run.launchPart(timer.stream(), true); !status) return propagate(status);
  return run;
}

Status CellRun::launchPart(void *stream, bool forward) {
  for (const Kernel &kernel : kernels) {
    const KernelRole role = kernel.plan().role;
    if ((role == KernelRole::Forward) != forward) continue;
    if (role == KernelRole::Fused)
      if (Status status = sums.fill(0, stream); !status) return status;
    if (Status status = kernel.launch(stream, args); !status) return status;
  }
  return {};
}

Status CellRun::launch(void *stream) { return launchPart(stream, !backward); }

std::string CellRun::schedule() const {
  std::string text;
  for (const Kernel &kernel : kernels) {
    const KernelPlan &plan = kernel.plan();
    if ((plan.role == KernelRole::Forward) == backward) continue;
    const std::string own = plan.schedule.canonicalText();
    text += backward ? fmt::format("{}{}: {}", text.empty() ? "" : "; ", toString(plan.role), own) : own;
  }
  return text;
}

} // namespace tilewright::bench
