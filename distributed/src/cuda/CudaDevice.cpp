#include "tilewright/distributed/engine/CudaDevice.h"
#include "StepKernels.h"
#include "tilewright/cuda/DeviceMemory.h"
#include "tilewright/cuda/Stream.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <mutex>

namespace tilewright::dist {
namespace {

constexpr int kLanes = 3;
/// Grid-stride loops: enough blocks to fill a GPU several times over.
constexpr int64_t kMostBlocks = 4096;

int64_t blocksFor(int64_t elements, int64_t perBlock) {
  return std::clamp<int64_t>((elements + perBlock - 1) / perBlock, 1, kMostBlocks);
}

class StreamDevice final : public CudaDevice {
public:
  StreamDevice(std::shared_ptr<const cuda::Device> device, CudaKernels kernels)
      : device(std::move(device)), kernels(std::move(kernels)) {}

  Status open(void *hostStream) {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (lane == static_cast<int>(Lane::Host) && hostStream) {
        streams[static_cast<size_t>(lane)] = hostStream;
        continue;
      }
      Expected<cuda::Stream> stream = cuda::Stream::create(device);
      if (!stream) return propagate(stream);
      streams[static_cast<size_t>(lane)] = stream->handle();
      owned.push_back(std::move(*stream));
    }
    return {};
  }

  void *stream(Lane lane) const override { return streams[static_cast<size_t>(lane)]; }
  const std::shared_ptr<const cuda::Device> &gpu() const override { return device; }

  Expected<void *> allocate(int64_t bytes, std::string_view what) override {
    Expected<cuda::DeviceMemory> made = cuda::DeviceMemory::allocate(device, bytes);
    if (!made) {
      made.error().message = fmt::format("{}: {}", what, made.error().message);
      return propagate(made);
    }
    if (bytes)
      if (Status s = made->fill(0, stream(Lane::Host)); !s) return propagate(s);
    if (Status s = synchronizeLane(Lane::Host); !s) return propagate(s);
    std::lock_guard lock(mutex);
    memory.push_back(std::move(*made));
    return memory.back().data();
  }

  Status run(Lane lane, const KernelCall &call) override {
    switch (call.kind) {
    case OpKind::Convert:
      return convert(lane, call);
    case OpKind::SquaredNorm:
      return squaredNorm(lane, call);
    case OpKind::Scale:
      return scale(lane, call);
    case OpKind::AdamW:
      return update(lane, call);
    default:
      return fail(Stage::Launch, fmt::format("{} is no kernel of the device", toString(call.kind)));
    }
  }

  Status record(Lane lane, int op) override {
    Expected<cuda::Event *> event = eventOf(op);
    return event ? (*event)->record(stream(lane)) : Status(propagate(event));
  }
  Status wait(Lane lane, int op) override {
    Expected<cuda::Event *> event = eventOf(op);
    return event ? (*event)->holdBack(stream(lane)) : Status(propagate(event));
  }

  Status toHost(void *to, const void *from, int64_t bytes) override {
    return cuda::copyToHost(*device, to, from, bytes, stream(Lane::Compute));
  }
  Status fromHost(void *to, const void *from, int64_t bytes) override {
    // Pageable memory is staged before the call returns: the caller may reuse it.
    return cuda::copyFromHost(*device, to, from, bytes, stream(Lane::Host));
  }
  Status clear(void *data, int64_t bytes) override {
    return cuda::fill(*device, data, 0, bytes, stream(Lane::Host));
  }
  Status synchronize() override {
    for (Lane lane : {Lane::Host, Lane::Compute, Lane::Communication})
      if (Status s = synchronizeLane(lane); !s) return s;
    return {};
  }

private:
  template <class Function> Status call(Function function, const char *what) {
    cuda::CurrentContext current(device->api(), device->context(), device->handle());
    const int code = current.code() == cuda::kSuccess ? function(device->api()) : current.code();
    return device->driver().check(code, Stage::Launch, what);
  }
  Status synchronizeLane(Lane lane) {
    auto finish = [&](const cuda::DriverApi &api) { return api.streamSynchronize(stream(lane)); };
    return call(finish, "finish the work on a stream");
  }

  Expected<cuda::Event *> eventOf(int op) {
    std::lock_guard lock(mutex);
    if (auto known = events.find(op); known != events.end()) return &known->second;
    Expected<cuda::Event> made = cuda::Event::create(device);
    if (!made) return propagate(made);
    return &events.emplace(op, std::move(*made)).first->second;
  }

  Status convert(Lane lane, const KernelCall &c) {
    const Operand &from = c.operands[0], &to = c.operands[1];
    if (from.elements == 0) return {};
    const char *symbol = from.type == ElementType::F32 ? "tw_step_convert_f32_bf16" : "tw_step_convert_bf16_f32";
    return kernels.launch(symbol, stream(lane), blocksFor(from.elements, kTileElements),
                          ConvertArgs{from.data, to.data, from.elements});
  }

  Status squaredNorm(Lane lane, const KernelCall &c) {
    const Operand &from = c.operands[0];
    const int shards = c.shard < 0 ? c.worldSize : 1;
    Expected<double *> partial = partialsOf(lane, c.worldSize);
    if (!partial) return propagate(partial);
    const char *symbol = from.type == ElementType::F32 ? "tw_step_norm_f32" : "tw_step_norm_bf16";
    if (Status s = kernels.launch(symbol, stream(lane), int64_t{kNormBlocks} * shards,
                                  NormArgs{from.data, *partial, from.elements / shards});
        !s)
      return s;
    return kernels.launch(
        "tw_step_sum_norms", stream(lane), 1,
        NormSumArgs{*partial, static_cast<double *>(c.operands[1].data), std::max(c.shard, 0), shards, c.worldSize});
  }

  /// Partial sums of a lane's norms, which follow one another.
  Expected<double *> partialsOf(Lane lane, int worldSize) {
    std::lock_guard lock(tableMutex);
    double *&known = partials[{lane, worldSize}];
    if (!known) {
      Expected<void *> made =
          allocate(int64_t{kNormBlocks} * worldSize * static_cast<int64_t>(sizeof(double)), "partial norms");
      if (!made) return propagate(made);
      known = static_cast<double *>(*made);
    }
    return known;
  }

  Status scale(Lane lane, const KernelCall &c) {
    return kernels.launch("tw_step_scale", stream(lane), 1,
                          ScaleArgs{static_cast<const double *>(c.operands[0].data),
                                    static_cast<double *>(c.operands[1].data), c.operands[0].elements,
                                    c.settings->maxNorm, c.settings->nonFinite != StepSettings::NonFinite::Continue});
  }

  Status update(Lane lane, const KernelCall &c) {
    const Operand &gradients = c.operands[0], &parameters = c.operands[2];
    if (c.decay.empty()) return {};
    Expected<void *> ranges = rangesOf(c.decay);
    if (!ranges) return propagate(ranges);
    const StepSettings &s = *c.settings;
    const double steps = static_cast<double>(s.step);
    const AdamWArgs args{gradients.data,
                         static_cast<const double *>(c.operands[1].data),
                         parameters.data,
                         static_cast<float *>(c.operands[3].data),
                         static_cast<float *>(c.operands[4].data),
                         c.operands.size() > 5 ? static_cast<float *>(c.operands[5].data) : nullptr,
                         parameters.elements,
                         *ranges,
                         static_cast<int32_t>(c.decay.size()),
                         static_cast<float>(s.beta1),
                         static_cast<float>(s.beta2),
                         static_cast<float>(s.learningRate / (1 - std::pow(s.beta1, steps))),
                         static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2, steps))),
                         static_cast<float>(s.epsilon),
                         s.learningRate};
    auto name = [](ElementType type) { return type == ElementType::F32 ? "f32" : "bf16"; };
    const std::string symbol = fmt::format("tw_step_adamw_{}_{}", name(gradients.type), name(parameters.type));
    return kernels.launch(symbol, stream(lane), blocksFor(parameters.elements, kTileElements), args);
  }

  /// Each table is copied once; engines that follow one another on a device have tables of their own at the same place.
  Expected<void *> rangesOf(std::span<const DecayRange> decay) {
    static_assert(sizeof(DecayRange) == 2 * sizeof(int64_t) + sizeof(double)); // no padding: bytes are the content
    const std::string content(reinterpret_cast<const char *>(decay.data()), decay.size_bytes());
    std::lock_guard lock(tableMutex);
    if (auto known = tables.find(content); known != tables.end()) return known->second;
    const int64_t bytes = static_cast<int64_t>(decay.size_bytes());
    Expected<void *> made = allocate(bytes, "table of weight decay");
    if (!made) return made;
    if (Status s = fromHost(*made, decay.data(), bytes); !s) return propagate(s);
    if (Status s = synchronizeLane(Lane::Host); !s) return propagate(s);
    tables[content] = *made;
    return made;
  }

  std::shared_ptr<const cuda::Device> device;
  CudaKernels kernels;
  std::array<void *, kLanes> streams{};
  std::vector<cuda::Stream> owned;
  std::mutex tableMutex;
  std::map<std::pair<Lane, int>, double *> partials; ///< By lane and world size.
  std::map<std::string, void *> tables;              ///< By content.
  std::mutex mutex;
  std::vector<cuda::DeviceMemory> memory;
  std::map<int, cuda::Event> events;
};

} // namespace

Expected<std::unique_ptr<CudaDevice>> CudaDevice::create(Context &context, int ordinal, void *hostStream) {
  auto device = context.device(ordinal);
  if (!device) return propagate(device);
  Expected<CudaKernels> kernels = context.prepare(stepKernels(), {.device = ordinal});
  if (!kernels) return propagate(kernels);
  auto made = std::make_unique<StreamDevice>(std::move(*device), std::move(*kernels));
  if (Status s = made->open(hostStream); !s) return propagate(s);
  return made;
}

} // namespace tilewright::dist
