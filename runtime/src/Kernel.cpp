#include "tilewright/Kernel.h"
#include "LoadedKernel.h"
#include <algorithm>
#include <fmt/format.h>
#include <mutex>
#include <optional>

namespace tilewright {

std::string_view toString(KernelOrigin origin) {
  switch (origin) {
  case KernelOrigin::Compiled:
    return "compiled";
  case KernelOrigin::Disk:
    return "disk";
  case KernelOrigin::Bundle:
    return "bundle";
  }
  return "";
}

const KernelPlan &Kernel::plan() const { return loaded->plan; }
const PrepareReport &Kernel::report() const { return loaded->report; }

Expected<int64_t> Kernel::checkedBlocks(const KernelArgs &args) const {
  if (!loaded->module)
    return fail(Stage::Launch, fmt::format("kernel {} is for the CPU and has no stream", loaded->report.symbol),
                "call run(), or prepare it for a CUDA target");
  auto blocks = blockCount(loaded->plan, args);
  if (!blocks || *blocks == 0) return blocks;
  if (Status status = checkArgs(loaded->plan, args); !status) return propagate(status);
  return blocks;
}

Status Kernel::launch(void *stream, const KernelArgs &args) const {
  auto blocks = checkedBlocks(args);
  if (!blocks) return propagate(blocks);
  if (*blocks == 0) return {};
  if (loaded->sm90) {
    auto sm90 = loaded->sm90->describe(stream, *blocks, args);
    if (!sm90) return propagate(sm90);
    return loaded->module->launch(stream, sm90->blocks, &args, &sm90->parameter);
  }
  return loaded->module->launch(stream, static_cast<unsigned>(*blocks), &args);
}

Expected<LaunchCall> Kernel::launchCall(void *stream, const KernelArgs &args) const {
  auto blocks = checkedBlocks(args);
  if (!blocks) return propagate(blocks);
  LaunchCall call{loaded->module->entry(), static_cast<unsigned>(*blocks), args, {}};
  if (!loaded->sm90 || *blocks == 0) return call;
  auto sm90 = loaded->sm90->describe(stream, *blocks, args);
  if (!sm90) return propagate(sm90);
  call.blocks = sm90->blocks;
  call.sm90 = sm90->parameter;
  return call;
}

Status Kernel::run(const KernelArgs &args) const {
  if (!loaded->host)
    return fail(
        Stage::Launch,
        fmt::format("kernel {} is for {} and cannot run on the CPU", loaded->report.symbol, loaded->plan.target.name),
        "call launch(), or prepare it for the target cpu");
  auto blocks = blockCount(loaded->plan, args);
  if (!blocks) return propagate(blocks);
  if (*blocks == 0) return {};
  if (Status status = checkArgs(loaded->plan, args); !status) return status;

  HostResources &resources = *loaded->resources;
  // Blocks differ in work (a causal mask's first tile has little), so chunks are small: up to 16 for each thread.
  const int64_t chunk = std::max<int64_t>(1, *blocks / (int64_t{16} * resources.pool.threads()));
  std::mutex failureMutex;
  std::optional<Error> failure;
  bool anyWorked = false;
  resources.pool.run(*blocks, chunk, [&](ChunkQueue &chunks) {
    int64_t begin = 0, end = 0;
    auto scratch = resources.scratch.borrow(loaded->report.scratchBytes);
    std::unique_lock lock(failureMutex);
    if (!scratch) {
      failure = scratch.error();
      return;
    }
    anyWorked = true;
    lock.unlock();
    while (chunks.take(begin, end))
      loaded->host->run(args, begin, end, scratch->data());
  });
  // A thread without memory leaves its chunks to the others; only when all fail is there no result.
  if (failure && !anyWorked) return tl::unexpected(*failure);
  return {};
}

} // namespace tilewright
