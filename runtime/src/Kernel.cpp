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

Status Kernel::launch(void *stream, const KernelArgs &args) const {
  if (!loaded->module)
    return fail(Stage::Launch, fmt::format("kernel {} is for the CPU and has no stream", loaded->report.symbol),
                "call run(), or prepare it for a CUDA target");
  auto blocks = blockCount(loaded->plan, args);
  if (!blocks) return propagate(blocks);
  if (*blocks == 0) return {};
  if (Status status = checkArgs(loaded->plan, args); !status) return status;
  if (loaded->sm90) return loaded->sm90->launch(*loaded->module, stream, *blocks, args);
  return loaded->module->launch(stream, static_cast<unsigned>(*blocks), &args);
}

cuda::Entry Kernel::entry() const { return loaded->module ? loaded->module->entry() : cuda::Entry{}; }

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
