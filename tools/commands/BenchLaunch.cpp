#include "BenchLaunch.h"
#include "tilewright/cuda/DeviceMemory.h"
#include "tilewright/cuda/Stream.h"
#include <algorithm>
#include <chrono>
#include <vector>

namespace tilewright::tool {
namespace {

constexpr int kSequence = 64, kDim = 64, kRounds = 101;
constexpr int kLaunches = 200; ///< Fewer than the driver queues before it waits for the device.

/// Microseconds a launch over one round, which starts with an empty stream.
template <class Launch> Expected<double> timeRound(const cuda::Stream &stream, Launch launch) {
  if (Status status = stream.synchronize(); !status) return propagate(status);
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kLaunches; ++i)
    if (Status status = launch(); !status) return propagate(status);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kLaunches;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// One head of one tile, all in `memory`.
KernelArgs argumentsIn(const cuda::DeviceMemory &memory, const Problem &problem) {
  KernelArgs args = argsFor(problem);
  char *base = static_cast<char *>(memory.data());
  for (TensorRef *ref : {&args.q, &args.k, &args.v, &args.o}) {
    *ref = {base, kSequence * kDim, kSequence * kDim, kDim};
    base += kSequence * kDim * 4;
  }
  args.lse = reinterpret_cast<float *>(base);
  return args;
}

} // namespace

Expected<LaunchFigures> measureLaunch(Context &context, const Target &target) {
  Problem problem;
  problem.seqQ = problem.seqKV = kSequence;
  problem.dimQK = problem.dimV = kDim;
  Expected<KernelPlan> plan = KernelPlan::make(problem, target, KernelRole::Forward);
  if (!plan) return propagate(plan);
  Expected<Kernel> kernel = context.prepare(*plan);
  if (!kernel) return propagate(kernel);
  Expected<std::shared_ptr<const cuda::Device>> device = context.device(0);
  if (!device) return propagate(device);
  Expected<cuda::DeviceMemory> memory = cuda::DeviceMemory::allocate(*device, 1 << 20);
  if (!memory) return propagate(memory);
  if (Status status = memory->fill(0); !status) return propagate(status);
  Expected<cuda::Stream> stream = cuda::Stream::create(*device);
  if (!stream) return propagate(stream);

  KernelArgs args = argumentsIn(*memory, problem);
  const cuda::DriverApi &api = (*device)->api();
  Expected<LaunchCall> call = kernel->launchCall(stream->handle(), args);
  if (!call) return propagate(call);
  std::array<void *, 2> parameters = call->parameters();
  auto byDriver = [&]() -> Status {
    const cuda::Entry &entry = call->entry;
    int code = api.launchKernel(entry.function, call->blocks, 1, 1, entry.threads, 1, 1, entry.sharedBytes,
                                stream->handle(), parameters.data(), nullptr);
    if (code == cuda::kSuccess) return {};
    return (*device)->driver().check(code, Stage::Launch, "launch a kernel");
  };
  auto byKernel = [&] { return kernel->launch(stream->handle(), args); };

  std::vector<double> driver, launch, elsewhere, above;
  for (int round = 0; round <= kRounds; ++round) {
    Expected<double> times[3];
    {
      cuda::CurrentContext current(api, (*device)->context(), (*device)->handle());
      if (Status status = (*device)->driver().check(current.code(), Stage::Launch, "make a context current"); !status)
        return propagate(status);
      // Who goes first changes: neither always meets the state that the other left.
      bool driverFirst = round % 2 == 0;
      if (driverFirst) times[0] = timeRound(*stream, byDriver);
      times[1] = timeRound(*stream, byKernel);
      if (!driverFirst) times[0] = timeRound(*stream, byDriver);
    }
    times[2] = timeRound(*stream, byKernel);
    for (Expected<double> &time : times)
      if (!time) return propagate(time);
    if (round == 0) continue; // warms up
    driver.push_back(*times[0]);
    launch.push_back(*times[1]);
    elsewhere.push_back(*times[2]);
    above.push_back(*times[1] - *times[0]);
  }
  if (Status status = stream->synchronize(); !status) return propagate(status);
  return LaunchFigures{median(driver), median(launch), median(elsewhere), median(above)};
}

} // namespace tilewright::tool
