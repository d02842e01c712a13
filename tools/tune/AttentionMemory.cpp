#include "AttentionMemory.h"
#include <algorithm>
#include <cstring>

namespace tilewright::tune {
namespace {

/// Strides of a contiguous tensor in a layout.
TensorRef refOf(void *data, const TensorShape &shape, Layout layout) {
  if (layout == Layout::BSHD) return {data, shape.rows * shape.heads * shape.dim, shape.dim, shape.heads * shape.dim};
  return {data, shape.heads * shape.rows * shape.dim, shape.rows * shape.dim, shape.dim};
}

/// Which results a kernel writes: Forward O and LSE, DQ dQ, DKV dK and dV, Fused all gradients.
bool writes(KernelRole role, TensorRef KernelArgs::*result) {
  if (result == &KernelArgs::o) return role == KernelRole::Forward;
  if (result == &KernelArgs::dQ) return role == KernelRole::DQ || role == KernelRole::Fused;
  return role == KernelRole::DKV || role == KernelRole::Fused;
}

} // namespace

std::vector<AttentionMemory::Part> AttentionMemory::parts() const {
  std::vector<Part> all = {{&KernelArgs::q, nullptr, shapeOfQ(problem)},
                           {&KernelArgs::k, nullptr, shapeOfK(problem)},
                           {&KernelArgs::v, nullptr, shapeOfV(problem)},
                           {&KernelArgs::o, &HostResults::o, shapeOfO(problem)}};
  if (problem.direction == Direction::Backward) {
    all.push_back({&KernelArgs::dO, nullptr, shapeOfO(problem)});
    all.push_back({&KernelArgs::dQ, &HostResults::dQ, shapeOfQ(problem)});
    all.push_back({&KernelArgs::dK, &HostResults::dK, shapeOfK(problem)});
    all.push_back({&KernelArgs::dV, &HostResults::dV, shapeOfV(problem)});
  }
  return all;
}

Expected<void *> AttentionMemory::allocate(int64_t bytes) {
  if (onDevice) return onDevice->allocate(bytes);
  Expected<AlignedBuffer> buffer = AlignedBuffer::zeros(std::max<int64_t>(bytes, 16), "tensor");
  if (!buffer) return propagate(buffer);
  onHost.push_back(std::move(*buffer));
  return static_cast<void *>(onHost.back().data());
}

Status AttentionMemory::write(void *address, const void *from, int64_t bytes) {
  if (onDevice) return onDevice->at(address).copyFromHost(from, bytes);
  std::memcpy(address, from, static_cast<size_t>(bytes));
  return {};
}

Status AttentionMemory::read(void *to, const void *address, int64_t bytes) {
  if (onDevice) return onDevice->at(address).copyToHost(to, bytes);
  std::memcpy(to, address, static_cast<size_t>(bytes));
  return {};
}

Status AttentionMemory::fill(void *address, int64_t bytes, unsigned char value) {
  if (onDevice) return onDevice->at(address).fill(value);
  std::memset(address, value, static_cast<size_t>(bytes));
  return {};
}

Expected<AttentionMemory> AttentionMemory::make(const Problem &problem, const std::vector<Table> &tables,
                                                std::shared_ptr<const cuda::Device> device) {
  AttentionMemory memory(problem);
  memory.device = device;
  if (device) memory.onDevice.emplace(device);
  memory.args = argsFor(problem);
  for (const Part &part : memory.parts()) {
    Expected<int64_t> elements = part.shape.elements();
    if (!elements) return propagate(elements);
    Expected<void *> data = memory.allocate(*elements * sizeInBytes(problem.dtype));
    if (!data) return propagate(data);
    memory.args.*part.ref = refOf(*data, part.shape, problem.layout);
  }
  Expected<int64_t> rows = shapeOfLse(problem).elements();
  if (!rows) return propagate(rows);
  for (float **row : {&memory.args.lse, &memory.args.delta, &memory.args.lseRest}) {
    // Forward writes what rounding LSE left out only where gradients ask for it.
    if (problem.direction == Direction::Forward && row != &memory.args.lse) continue;
    Expected<void *> data = memory.allocate(*rows * 4);
    if (!data) return propagate(data);
    *row = static_cast<float *>(*data);
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    Expected<TableRef> ref = device ? memory.onDevice->upload(tables[i]) : Expected<TableRef>(tables[i].ref());
    if (!ref) return propagate(ref);
    memory.args.tables[i] = *ref;
  }
  return memory;
}

Status AttentionMemory::fillInputs(const RandomTensors &inputs) {
  for (auto [tensor, ref] : {std::pair{&inputs.q, &args.q}, std::pair{&inputs.k, &args.k},
                             std::pair{&inputs.v, &args.v}, std::pair{&inputs.dO, &args.dO}})
    if (tensor->valid())
      if (Status status = write(ref->data, tensor->data(), tensor->bytes()); !status) return status;
  return {};
}

std::vector<cuda::DeviceMemory *> AttentionMemory::deviceInputs() {
  std::vector<cuda::DeviceMemory *> inputs;
  for (const Part &part : parts())
    if (!part.result) inputs.push_back(&onDevice->at((args.*part.ref).data));
  return inputs;
}

Status AttentionMemory::reserveWorkspace(const std::vector<Kernel> &kernels) {
  for (const Kernel &kernel : kernels) {
    const KernelPlan &plan = kernel.plan();
    if (plan.role == KernelRole::Fused && device) {
      if (Status status = resize(sums, dqSumsBytes(plan, args)); !status) return status;
      args.dqSums = static_cast<float *>(sums.data());
    }
    if (plan.role == KernelRole::Forward && device) {
      if (Status status = resize(partials, partialsBytes(plan, args)); !status) return status;
      args.partials = static_cast<float *>(partials.data());
    }
    if (plan.role == KernelRole::Forward && !device) {
      Expected<AlignedBuffer> made = AlignedBuffer::zeros(partialsBytes(plan, args), "partials");
      if (!made) return propagate(made);
      hostPartials = std::move(*made);
      args.partials = hostPartials.as<float>();
    }
  }
  return {};
}

Status AttentionMemory::resize(cuda::DeviceMemory &memory, int64_t bytes) {
  if (bytes == memory.size()) return {};
  memory = {}; // before the new one: both together might not fit
  Expected<cuda::DeviceMemory> made = cuda::DeviceMemory::allocate(device, bytes);
  if (!made) return propagate(made);
  memory = std::move(*made);
  return {};
}

Status AttentionMemory::clearSums(void *stream) { return sums.fill(0, stream); }

Status AttentionMemory::poisonResults(KernelRole role) {
  constexpr unsigned char kNaN = 0xff;
  for (const Part &part : parts())
    if (part.result && writes(role, part.ref))
      if (Status status = fill((args.*part.ref).data, *part.shape.elements() * sizeInBytes(problem.dtype), kNaN);
          !status)
        return status;
  if (role != KernelRole::Forward) return {};
  return fill(args.lse, *shapeOfLse(problem).elements() * 4, kNaN);
}

Expected<HostResults> AttentionMemory::results(KernelRole role) {
  HostResults results;
  auto fetch = [&](Tensor &tensor, ElementType type, const TensorShape &shape, Layout layout,
                   const void *address) -> Status {
    Expected<Tensor> made = Tensor::zeros(type, shape, layout);
    if (!made) return propagate(made);
    tensor = std::move(*made);
    return read(tensor.data(), address, tensor.bytes());
  };
  for (const Part &part : parts())
    if (part.result && writes(role, part.ref))
      if (Status status = fetch(results.*part.result, elementType(problem.dtype), part.shape, problem.layout,
                                (args.*part.ref).data);
          !status)
        return propagate(status);
  if (role == KernelRole::Forward)
    if (Status status = fetch(results.lse, ElementType::F32, shapeOfLse(problem), Layout::BHSD, args.lse); !status)
      return propagate(status);
  return results;
}

} // namespace tilewright::tune
