#include "tilewright/Context.h"
#include "ContextState.h"
#include <exception>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

namespace tilewright {

Context::State::State(ContextOptions given, Environment env, std::shared_ptr<Log> log, DiskCache::Options cacheOptions)
    : options(std::move(given)), environment(std::move(env)), log(std::move(log)), cache(std::move(cacheOptions)),
      hostResources(
          std::make_shared<HostResources>(environment.threads ? environment.threads : ThreadPool::hardwareThreads())) {
  if (!environment.record.empty()) record.emplace(environment.record, this->log);
}

Context::Context(std::unique_ptr<State> made) : state(std::move(made)) {}
Context::~Context() = default;

Expected<std::shared_ptr<Context>> Context::create(ContextOptions options) {
  auto environment = options.environment ? Expected<Environment>(*options.environment) : Environment::ofProcess();
  if (!environment) return propagate(environment);
  auto log = std::make_shared<Log>(options.log);
  if (!environment->unknown.empty()) {
    std::vector<std::string_view> known;
    for (const Knob &knob : environmentKnobs())
      known.push_back(knob.name);
    log->write(LogLevel::Warning, fmt::format("unknown environment variable{} {}; known are {}",
                                              environment->unknown.size() == 1 ? "" : "s",
                                              fmt::join(environment->unknown, ", "), fmt::join(known, ", ")));
  }
  DiskCache::Options cache;
  cache.directory = options.cacheDir ? *options.cacheDir : environment->cacheDirectory();
  cache.maxBytes = environment->cacheMaxBytes;
  cache.bundles = environment->bundles;
  cache.log = log;
  if (!options.cacheDir && cache.directory.empty())
    log->write(LogLevel::Warning,
               "no cache folder: neither HOME nor XDG_CACHE_HOME is set; kernels are compiled anew by "
               "every process; TILEWRIGHT_CACHE_DIR can name a folder");
  for (const std::string &bundle : cache.bundles)
    if (access(bundle.c_str(), R_OK | X_OK) != 0)
      log->write(LogLevel::Warning, fmt::format("TILEWRIGHT_BUNDLES names {}, which is not a readable folder", bundle));
  auto state = std::make_unique<State>(std::move(options), std::move(*environment), std::move(log), std::move(cache));
  return std::shared_ptr<Context>(new Context(std::move(state)));
}

Expected<Kernel> Context::prepare(const KernelPlan &plan, const PrepareOptions &options) {
  if (state->record) state->record->add(plan);
  const std::string name =
      plan.target.isCpu() ? plan.canonicalText() : fmt::format("device {}\n{}", options.device, plan.canonicalText());
  std::shared_ptr<KernelSlot> slot;
  {
    std::shared_lock lock(state->kernelMutex);
    if (auto known = state->kernels.find(name); known != state->kernels.end()) slot = known->second;
  }
  bool mine = false;
  if (!slot) {
    std::unique_lock lock(state->kernelMutex);
    std::shared_ptr<KernelSlot> &place = state->kernels[name];
    mine = !place;
    if (mine) place = std::make_shared<KernelSlot>();
    slot = place;
  }
  const bool wasReady = !mine && slot->isFilled();
  if (mine) {
    KernelSlot::Result made;
    try {
      made = state->make(plan, options);
    } catch (const std::exception &exception) {
      made = fail(Stage::Compile, fmt::format("cannot prepare kernel {}: {}", plan.symbol(), exception.what()));
    }
    if (!made) {
      // A later call may succeed: what was missing can be installed, freed or set meanwhile.
      std::unique_lock lock(state->kernelMutex);
      if (auto known = state->kernels.find(name); known != state->kernels.end() && known->second == slot)
        state->kernels.erase(known);
    }
    slot->fill(std::move(made));
  }
  const KernelSlot::Result &result = slot->wait();
  if (!result) return tl::unexpected<Error>(result.error());
  return Kernel(*result, wasReady);
}

Expected<CompiledKernel> Context::compile(const KernelPlan &plan) {
  try {
    return state->findOrCompile(CodeRequest(plan));
  } catch (const std::exception &exception) {
    return fail(Stage::Compile, fmt::format("cannot compile kernel {}: {}", plan.symbol(), exception.what()));
  }
}

Expected<CudaKernels> Context::prepare(const CudaSource &source, const PrepareOptions &options) {
  return state->make(source, options);
}

Expected<CompiledKernel> Context::compile(const CudaSource &source, const std::string &architecture) {
  return state->findOrCompile(CodeRequest(source, architecture));
}

Expected<std::vector<PlanChoice>> Context::choose(const Problem &problem, const Target &target,
                                                  const ScheduleOverrides &overrides, int device) {
  TunedLookup tuned;
  tuned.store = state->tunedStore();
  if (tuned.store) tuned.here = tuningEnvironment(*this, target, device);
  try {
    return choosePlans(problem, target, overrides, tuned);
  } catch (const std::exception &exception) {
    return fail(Stage::Plan, fmt::format("cannot choose schedules: {}", exception.what()));
  }
}

size_t Context::dropUnused() {
  // Unloading takes locks of the driver: it happens after the map is free again.
  std::vector<std::shared_ptr<KernelSlot>> dropped;
  std::unique_lock lock(state->kernelMutex);
  for (auto known = state->kernels.begin(); known != state->kernels.end();) {
    // One reference to the slot and one to the kernel are the map's own.
    const bool unused = known->second.use_count() == 1 && known->second->isFilled() && known->second->wait() &&
                        known->second->wait()->use_count() == 1;
    if (unused) dropped.push_back(std::move(known->second));
    known = unused ? state->kernels.erase(known) : std::next(known);
  }
  lock.unlock();
  return dropped.size();
}

Expected<std::shared_ptr<const cuda::Driver>> Context::driver() { return state->driver(); }
Expected<std::shared_ptr<const cuda::Device>> Context::device(int ordinal) { return state->device(ordinal); }
Expected<std::shared_ptr<const cuda::Nvrtc>> Context::nvrtc() { return state->nvrtc(); }
Target Context::hostTarget() const {
  Target target = Target::hostCpu();
  target.threads = threads();
  return target;
}

Expected<Target> Context::deviceTarget(int ordinal) {
  Expected<std::shared_ptr<const cuda::Device>> opened = device(ordinal);
  if (!opened) return propagate(opened);
  return Target::forComputeCapability((*opened)->info().major, (*opened)->info().minor);
}

const Environment &Context::environment() const { return state->environment; }
DiskCache &Context::diskCache() { return state->cache; }
const std::string &Context::generatorId() const { return state->options.generatorId; }
const std::string &Context::hostCompiler() const { return state->options.hostCompiler; }
int Context::threads() const { return state->hostResources->pool.threads(); }

} // namespace tilewright
