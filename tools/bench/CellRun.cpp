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

Expected<CellRun> CellRun::make(std::shared_ptr<const cuda::Device> device, LaunchTimer &timer, Attention attention) {
  CellRun run(std::move(device), std::move(attention));
  const Problem problem = run.attention.problem();
  const bool backward = run.direction() == Direction::Backward;
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
    if (part.gradient && !backward) continue;
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
  for (float **row : {&args.lse, &args.lseRest}) {
    if (!backward && row != &args.lse) continue;
    Expected<void *> data = run.allocate(*rows * 4);
    if (!data) return propagate(data);
    *row = static_cast<float *>(*data);
  }
  for (Direction direction : {Direction::Forward, Direction::Backward}) {
    if (direction == Direction::Backward && !backward) continue;
    Expected<void *> workspace = run.allocate(run.attention.workspaceBytes(direction, args));
    if (!workspace) return propagate(workspace);
    run.attention.useWorkspace(direction, *workspace, args);
  }
  if (backward)
    if (Status status = run.attention.forward(timer.stream(), args); !status) return propagate(status);
  return run;
}

Status CellRun::launch(void *stream) {
  return direction() == Direction::Forward ? attention.forward(stream, args) : attention.backward(stream, args);
}

std::string CellRun::schedule() const {
  std::string text;
  for (const Kernel &kernel : attention.kernels(direction())) {
    const KernelPlan &plan = kernel.plan();
    if (plan.role == KernelRole::Merge) continue; // follows forward
    const std::string own = plan.schedule.canonicalText();
    text += direction() == Direction::Backward
                ? fmt::format("{}{}: {}", text.empty() ? "" : "; ", toString(plan.role), own)
                : own;
  }
  return text;
}

} // namespace tilewright::bench
