#include "gpu/StreamBackend.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright::train {

Expected<std::unique_ptr<GpuBackend>> GpuBackend::create(std::shared_ptr<Context> context, const GpuOptions &options) {
  auto device = context->device(options.device);
  if (!device) return propagate(device);
  const cuda::DeviceInfo &info = (*device)->info();
  Expected<Target> target = Target::forComputeCapability(info.major, info.minor);
  if (!target) return propagate(target);
  auto products = GpuMatmul::create(*device, context->environment(), options.type, options.tf32);
  if (!products) return propagate(products);
  Expected<CudaKernels> kernels = context->prepare(layerKernels(), {.device = options.device});
  if (!kernels) return propagate(kernels);
  Expected<cuda::Stream> stream = cuda::Stream::create(*device);
  if (!stream) return propagate(stream);
  return std::make_unique<StreamBackend>(std::move(context), options, std::move(*target), std::move(*stream),
                                         std::move(*device), std::move(*kernels), std::move(*products));
}

std::string StreamBackend::description() const {
  return fmt::format("{} ({}), {}, {}{}", device->info().name, target.name, products->description(),
                     toString(options.type), options.tf32 && options.type == ElementType::F32 ? " as TF32" : "");
}

double StreamBackend::peakFlops() {
  int kilohertz = 0;
  if (device->api().deviceGetAttribute(&kilohertz, cuda::kClockKilohertz, device->handle()) != cuda::kSuccess) return 0;
  const cuda::DeviceInfo &info = device->info();
  // Dense operations of an SM a clock, from NVIDIA's architecture papers: bf16 on tensor cores with fp32 sums, fp32 on
  // the others. Data sheets count Hopper's tensor cores at 1.83 GHz, whatever single SMs reach.
  double clock = kilohertz * 1e3;
  const int tensor = info.major == 10                     ? 8192
                     : info.major == 9                    ? 4096
                     : info.major == 8 && info.minor == 0 ? 2048
                                                          : 1024;
  const bool onTensorCores = options.type == ElementType::BF16 || options.tf32;
  if (onTensorCores && info.major == 9) clock = std::min(clock, 1.83e9);
  const int plain = info.major == 8 && info.minor == 0 ? 128 : 256;
  const int each = !onTensorCores ? plain : options.type == ElementType::BF16 ? tensor : tensor / 2;
  return clock * info.smCount * each;
}

Expected<void *> StreamBackend::allocate(int64_t bytes, std::string_view what) {
  Expected<cuda::DeviceMemory> made = cuda::DeviceMemory::allocate(device, bytes);
  if (!made) {
    made.error().message = fmt::format("{}: {}", what, made.error().message);
    return propagate(made);
  }
  if (Status status = made->fill(0, stream()); !status) return propagate(status);
  buffers.push_back(std::move(*made));
  return buffers.back().data();
}

Status StreamBackend::fromHost(void *to, const void *from, int64_t bytes) {
  return cuda::copyFromHost(*device, to, from, bytes, stream());
}
Status StreamBackend::toHost(void *to, const void *from, int64_t bytes) {
  return cuda::copyToHost(*device, to, from, bytes, stream());
}
Status StreamBackend::clear(void *data, int64_t bytes) { return cuda::fill(*device, data, 0, bytes, stream()); }

Expected<void *> StreamBackend::scratch(int64_t bytes, Place place) {
  cuda::DeviceMemory &memory = places[place];
  if (memory.size() < bytes) {
    // Work that was enqueued may still use the old one.
    if (Status status = ownStream.synchronize(); !status) return propagate(status);
    memory = {};
    Expected<cuda::DeviceMemory> larger = cuda::DeviceMemory::allocate(device, bytes);
    if (!larger) {
      larger.error().message = "scratch memory of the layers: " + larger.error().message;
      return propagate(larger);
    }
    memory = std::move(*larger);
  }
  return memory.data();
}

Status StreamBackend::convert(const Matrix &from, const Matrix &to, bool add) {
  auto name = [](ElementType type) { return type == ElementType::F32 ? "_f32" : "_bf16"; };
  return launchRows(
      fmt::format("tw_train_convert{}{}", name(from.type), name(to.type)), to.rows,
      ConvertRowsArgs{{from.data, from.stride}, {to.data, to.stride}, to.rows, static_cast<int32_t>(to.columns), add});
}

Expected<Matrix> StreamBackend::asActivation(const Matrix &from, Place place) {
  if (from.type == options.type) return from;
  Expected<void *> memory = scratch(from.rows * from.columns * sizeInBytes(options.type), place);
  if (!memory) return propagate(memory);
  const Matrix to = Matrix::of(*memory, from.rows, from.columns, options.type);
  if (Status status = convert(from, to, false); !status) return propagate(status);
  return to;
}

Status StreamBackend::matmul(const Matrix &a, bool transposeA, const Matrix &b, bool transposeB, const Matrix &c,
                             bool add) {
  Expected<Matrix> left = asActivation(a, OperandA), right = asActivation(b, OperandB);
  if (!left) return propagate(left);
  if (!right) return propagate(right);
  if (options.type == ElementType::BF16 || c.type == ElementType::F32)
    return products->run(*left, transposeA, *right, transposeB, c, add, stream());
  // Products of fp32 are fp32; where a bf16 gradient takes them, they are rounded once.
  Expected<void *> memory = scratch(c.rows * c.columns * 4, Result);
  if (!memory) return propagate(memory);
  const Matrix result = Matrix::of(*memory, c.rows, c.columns);
  if (Status status = products->run(*left, transposeA, *right, transposeB, result, false, stream()); !status)
    return status;
  return convert(result, c, add);
}

} // namespace tilewright::train
