// The insides of a Context: the tools it opened, and the kernels it remembers.
#pragma once

#include "LoadedKernel.h"
#include "tuning/ProblemRecord.h"
#include "tilewright/Context.h"
#include "tilewright/CudaSource.h"
#include <atomic>
#include <condition_variable>
#include <map>
#include <shared_mutex>
#include <unordered_map>

namespace tilewright {

/// One kernel being prepared or ready. The thread that made the slot fills it; others wait on it alone.
class KernelSlot {
public:
  using Result = Expected<std::shared_ptr<const LoadedKernel>>;

  void fill(Result made) {
    std::lock_guard lock(mutex);
    result = std::move(made);
    filled.store(true, std::memory_order_release);
    ready.notify_all();
  }
  bool isFilled() const { return filled.load(std::memory_order_acquire); }
  const Result &wait() {
    if (!isFilled()) {
      std::unique_lock lock(mutex);
      ready.wait(lock, [&] { return isFilled(); });
    }
    return result;
  }

private:
  std::mutex mutex;
  std::condition_variable ready;
  std::atomic<bool> filled{false};
  Result result; ///< Written once, before `filled`.
};

/// What code is asked for: a plan's, or that of a host's own CUDA text.
struct CodeRequest {
  explicit CodeRequest(const KernelPlan &plan);
  CodeRequest(const CudaSource &source, std::string architecture);

  std::string symbol, where; ///< For people: the kernel's name, and what it is for.
  std::string architecture;  ///< As in KernelKeyInputs.
  std::string text;          ///< What stands for the code in the key: KernelKeyInputs::planText.
  bool forCpu = false;
  const KernelPlan *plan = nullptr; ///< Either is set.
  const CudaSource *source = nullptr;
};

struct Context::State {
  State(ContextOptions given, Environment env, std::shared_ptr<Log> log, DiskCache::Options cache);

  /// Finds the code in the caches (unless told not to) or compiles and publishes it.
  Expected<CompiledKernel> findOrCompile(const CodeRequest &request, bool useCache = true);
  /// findOrCompile, then loads; compiles anew when a cached kernel turns out not to load.
  Expected<std::shared_ptr<const LoadedKernel>> make(const KernelPlan &plan, const PrepareOptions &options);
  Expected<CudaKernels> make(const CudaSource &source, const PrepareOptions &options);

  Expected<std::shared_ptr<const cuda::Driver>> driver();
  Expected<std::shared_ptr<const cuda::Device>> device(int ordinal);
  Expected<std::shared_ptr<const cuda::Nvrtc>> nvrtc();

  /// Null where there is none, or where the environment says not to use it.
  std::shared_ptr<TunedStore> tunedStore();

  const ContextOptions options;
  const Environment environment;
  const std::shared_ptr<Log> log;
  DiskCache cache;
  const std::shared_ptr<HostResources> hostResources;

  std::optional<ProblemRecord> record; ///< TILEWRIGHT_RECORD

  std::shared_mutex kernelMutex;
  std::unordered_map<std::string, std::shared_ptr<KernelSlot>> kernels; ///< By device and canonical plan text.

private:
  KernelKeyInputs keyInputs(const CodeRequest &request, const std::string &compiler) const;
  /// The compilers whose kernels may serve, the installed one first.
  std::vector<std::string> compilersFor(const CodeRequest &request);
  std::optional<CompiledKernel> findCached(const KernelKeyInputs &inputs);
  Expected<CompiledKernel> build(const CodeRequest &request);
  Status compileCuda(const GeneratedCode &code, std::span<const std::string> symbols, const cuda::Nvrtc &nvrtc,
                     CompiledKernel &result);
  Status judge(const CompiledKernel &kernel);
  /// The device, unless `what` would be loaded for a stream that is being captured.
  Expected<std::shared_ptr<const cuda::Device>> deviceFor(const PrepareOptions &options, const std::string &what);
  /// findOrCompile and `load`, which sets `unusable` where the code itself is at fault; then once more without a cache.
  template <class Load> Status codeThatLoads(const CodeRequest &request, PrepareReport &report, Load load);
  Status load(LoadedKernel &kernel, const CacheEntry &entry, const std::shared_ptr<const cuda::Device> &device,
              bool &unusable);
  cuda::Nvrtc::Search nvrtcSearch();
  void dump(const std::string &symbol, std::string_view suffix, std::string_view content);

  std::mutex toolMutex;
  std::shared_ptr<const cuda::Driver> openDriver;
  std::shared_ptr<const cuda::Nvrtc> openNvrtc;
  std::shared_ptr<TunedStore> openTuned;
  std::map<int, std::shared_ptr<const cuda::Device>> openDevices;
};

} // namespace tilewright
