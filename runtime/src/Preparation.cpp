// From a plan to a loaded kernel: bundles and disk cache first, then generate, compile, publish; then load.
#include "ContextState.h"
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>

namespace tilewright {
namespace {

class Stopwatch {
public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }

private:
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
};

/// Refuses a plan whose code this processor or device cannot run.
Status checkFits(const Target &target, const cuda::Device *device) {
  if (!device) {
    // Levels are named so that their text orders as they do: x86-64-v2 < x86-64-v3 < x86-64-v4.
    const Target host = Target::hostCpu();
    if (target.cpuLevel <= host.cpuLevel) return {};
    return fail(Stage::Load, fmt::format("the kernel is for {}, this processor is {}", target.cpuLevel, host.cpuLevel),
                "prepare it for the target cpu of this machine");
  }
  const cuda::DeviceInfo &info = device->info();
  const int major = target.computeCapability / 10, minor = target.computeCapability % 10;
  const bool exact = target.name.ends_with('a');
  if (info.major == major && (exact ? info.minor == minor : info.minor >= minor)) return {};
  return fail(Stage::Load,
              fmt::format("the kernel is for {}, device {} ({}) has compute capability {}.{}", target.name,
                          info.ordinal, info.name, info.major, info.minor),
              "choose the device's own target, or another device");
}

} // namespace

CodeRequest::CodeRequest(const KernelPlan &plan)
    : symbol(plan.symbol()), where(plan.target.isCpu() ? plan.target.cpuLevel : plan.target.name), architecture(where),
      text(plan.canonicalText()), forCpu(plan.target.isCpu()), plan(&plan) {}

CodeRequest::CodeRequest(const CudaSource &source, std::string architecture)
    : symbol(source.name), where(architecture), architecture(std::move(architecture)),
      text(fmt::format("source={}\nsymbols={}\n", sha256Hex(source.text), fmt::join(source.symbols, ","))),
      source(&source) {}

KernelKeyInputs Context::State::keyInputs(const CodeRequest &request, const std::string &compiler) const {
  KernelKeyInputs inputs;
  // A source is its own text, whatever program brings it.
  if (request.plan) inputs.generatorId = options.generatorId;
  inputs.planText = request.text;
  inputs.compiler = compiler;
  inputs.architecture = request.architecture;
  if (!request.forCpu) {
    inputs.options = cuda::fixedNvrtcOptions(cuda::NvrtcVersion::parse(compiler));
    inputs.options.insert(inputs.options.end(), options.nvrtcOptions.begin(), options.nvrtcOptions.end());
  }
  return inputs;
}

std::vector<std::string> Context::State::compilersFor(const CodeRequest &request) {
  if (request.forCpu) return {options.hostCompiler};
  {
    std::lock_guard lock(toolMutex);
    if (openNvrtc) return {openNvrtc->version().text()};
  }
  if (auto peeked = cuda::Nvrtc::peekVersion(nvrtcSearch()); peeked.major) return {peeked.text()};
  if (auto opened = nvrtc()) return {(*opened)->version().text()};
  // Without NVRTC the kernels that others compiled still serve.
  return cache.compilers(PayloadKind::Cubin);
}

std::optional<CompiledKernel> Context::State::findCached(const KernelKeyInputs &inputs) {
  auto hit = cache.find(kernelKey(inputs));
  if (!hit) return std::nullopt;
  CompiledKernel found;
  found.entry = std::move(hit->entry);
  found.report.origin = hit->fromBundle ? KernelOrigin::Bundle : KernelOrigin::Disk;
  found.report.path = std::move(hit->path);
  return found;
}

Expected<CompiledKernel> Context::State::findOrCompile(const CodeRequest &request, bool useCache) {
  Stopwatch total;
  std::optional<CompiledKernel> found;
  if (useCache)
    for (const std::string &compiler : compilersFor(request))
      if ((found = findCached(keyInputs(request, compiler)))) break;
  if (!found && useCache && !request.forCpu) {
    // Only file names told NVRTC's version so far; should they have lied, the kernel is cached under the true one.
    const cuda::NvrtcVersion peeked = cuda::Nvrtc::peekVersion(nvrtcSearch());
    if (auto opened = nvrtc(); opened && (*opened)->version() != peeked)
      found = findCached(keyInputs(request, (*opened)->version().text()));
  }
  if (!found) {
    auto built = build(request);
    if (!built) return built;
    found = std::move(*built);
  }
  PrepareReport &report = found->report;
  report.symbol = found->entry.symbol;
  report.key = found->entry.key();
  report.compiler = found->entry.inputs.compiler;
  report.compile = found->entry.report;
  report.scratchBytes = found->entry.scratchBytes;
  if (const KernelPlan *plan = request.plan)
    report.dynamicSharedBytes = plan->schedule.sharedBytes(plan->problem, plan->target, plan->role);
  report.totalMs = total.milliseconds();
  if (Status status = judge(*found); !status) return propagate(status);
  return std::move(*found);
}

Expected<CompiledKernel> Context::State::build(const CodeRequest &request) {
  const std::string &symbol = request.symbol, &where = request.where;
  if (environment.noCompile)
    return fail(Stage::Compile,
                fmt::format("kernel {} for {} is in no cache or bundle, and TILEWRIGHT_NO_COMPILE forbids compiling it",
                            symbol, where),
                "compile it beforehand and export it into a bundle, or unset TILEWRIGHT_NO_COMPILE", request.text);
  if (request.plan && !options.generator)
    return fail(
        Stage::Emit,
        request.forCpu
            ? fmt::format("kernel {} for {}: this program carries no compiler, which loads the CPU's kernels too",
                          symbol, where)
            : fmt::format("kernel {} for {} is in no cache or bundle, and this program carries no compiler", symbol,
                          where),
        request.forCpu
            ? "link libtilewright and create the context with optionsWithCompiler()"
            : "compile it with the tilewright tool and let TILEWRIGHT_BUNDLES name the exported folder; or link "
              "libtilewright and create the context with optionsWithCompiler()",
        request.text);

  CompiledKernel result;
  result.report.origin = KernelOrigin::Compiled;
  std::shared_ptr<const cuda::Nvrtc> compiler;
  if (!request.forCpu) {
    auto opened = nvrtc();
    if (!opened) return propagate(opened);
    compiler = *opened;
  }
  result.entry.inputs = keyInputs(request, compiler ? compiler->version().text() : options.hostCompiler);

  log->write(LogLevel::Info, fmt::format("compiling {} for {} with {}", symbol, where, result.entry.inputs.compiler));
  Stopwatch generating;
  auto code = request.plan ? options.generator->generate(*request.plan)
                           : Expected<GeneratedCode>({request.source->name, request.source->text, {}, 0});
  if (!code) return propagate(code);
  result.entry.generateMs = result.report.generateMs = generating.milliseconds();
  result.entry.symbol = code->symbol;
  result.entry.created = std::time(nullptr);
  if (compiler) {
    const std::vector<std::string> symbols =
        request.source ? request.source->symbols : std::vector<std::string>{code->symbol};
    if (Status status = compileCuda(*code, symbols, *compiler, result); !status) return propagate(status);
  } else {
    // The generator's own back end made the object: its time is the compile's.
    result.entry.kind = PayloadKind::Object;
    result.entry.scratchBytes = code->scratchBytes;
    result.entry.payload = std::move(code->object);
    std::swap(result.entry.generateMs, result.entry.compileMs);
    std::swap(result.report.generateMs, result.report.compileMs);
    dump(code->symbol, ".o", {result.entry.payload.data(), result.entry.payload.size()});
  }
  result.cudaSource = std::move(code->cudaSource);
  log->write(LogLevel::Info,
             fmt::format("compiled {} in {:.0f} ms", symbol, result.report.generateMs + result.report.compileMs));
  result.report.path = cache.publish(result.entry);
  return result;
}

Status Context::State::compileCuda(const GeneratedCode &code, std::span<const std::string> symbols,
                                   const cuda::Nvrtc &nvrtc, CompiledKernel &result) {
  dump(code.symbol, ".cu", code.cudaSource);
  cuda::NvrtcRequest request;
  request.source = code.cudaSource;
  request.name = code.symbol;
  request.architecture = result.entry.inputs.architecture;
  request.options = options.nvrtcOptions;
  request.failedDir = cache.failedDirectory();
  auto compiled = nvrtc.compile(request);
  if (!compiled) return propagate(compiled);
  dump(code.symbol, ".log", compiled->log);
  dump(code.symbol, ".cubin", {compiled->code.data(), compiled->code.size()});
  result.entry.kind = PayloadKind::Cubin;
  result.entry.sourceSha256 = sha256Hex(code.cudaSource);
  result.entry.report = cuda::parsePtxasLog(compiled->log, symbols);
  result.entry.compileMs = result.report.compileMs = compiled->milliseconds;
  result.entry.payload = std::move(compiled->code);
  return {};
}

Status Context::State::judge(const CompiledKernel &kernel) {
  const std::vector<std::string> &problems = kernel.entry.report.problems;
  if (problems.empty()) return {};
  std::string message = fmt::format("kernel {} compiles badly: {}", kernel.entry.symbol, fmt::join(problems, "; "));
  if (options.refuseProblems) return fail(Stage::Compile, std::move(message), "choose smaller tiles or more warps");
  log->warnOnce(kernel.entry.symbol, message + "; it is right but slow, smaller tiles or more warps help");
  return {};
}

Status Context::State::load(LoadedKernel &kernel, const CacheEntry &entry,
                            const std::shared_ptr<const cuda::Device> &device, bool &unusable) {
  if (entry.kind == PayloadKind::Object) {
    if (!options.generator)
      return fail(Stage::Load,
                  fmt::format("kernel {} is cached, but this program carries no linker for CPU code", entry.symbol),
                  "link the compiler library, or use a CUDA target");
    auto host = options.generator->loadHostCode(entry.payload, entry.symbol);
    unusable = !host;
    if (!host) return propagate(host);
    kernel.host = std::move(*host);
    kernel.resources = hostResources;
    return {};
  }
  cuda::Module::Options how;
  how.symbol = entry.symbol;
  how.dynamicSharedBytes = kernel.report.dynamicSharedBytes;
  how.threadsPerBlock = threadsPerBlock(kernel.plan.schedule, kernel.family);
  how.compilerVersion = cuda::NvrtcVersion::parse(entry.inputs.compiler).cudaVersion();
  auto module = cuda::Module::load(device, entry.payload, how, &unusable);
  if (!module) return propagate(module);
  kernel.module = std::move(*module);
  if (kernel.family != KernelFamily::Sm90) return {};
  auto launcher = Sm90Launcher::make(kernel.plan, device);
  if (!launcher) return propagate(launcher);
  kernel.sm90 = std::move(*launcher);
  return {};
}

Expected<std::shared_ptr<const cuda::Device>> Context::State::deviceFor(const PrepareOptions &prepareOptions,
                                                                        const std::string &what) {
  auto opened = device(prepareOptions.device);
  if (!opened) return opened;
  auto capturing = (*opened)->isCapturing(prepareOptions.stream);
  if (!capturing) return propagate(capturing);
  if (*capturing)
    return fail(Stage::Compile, fmt::format("kernel {} is not prepared yet, and its stream is being captured", what),
                "prepare the kernel before the capture begins; inside only launch it");
  return opened;
}

template <class Load>
Status Context::State::codeThatLoads(const CodeRequest &request, PrepareReport &report, Load load) {
  Stopwatch total;
  for (bool useCache : {true, false}) {
    auto code = findOrCompile(request, useCache);
    if (!code) return propagate(code);
    report = code->report;
    bool unusable = false;
    Stopwatch loading;
    Status loaded = load(code->entry, unusable);
    if (loaded) {
      report.loadMs = loading.milliseconds();
      report.totalMs = total.milliseconds();
      return {};
    }
    if (!unusable || !report.cacheHit()) return loaded;
    cache.discard(report.path, report.origin == KernelOrigin::Bundle, loaded.error().message);
  }
  return {};
}

Expected<std::shared_ptr<const LoadedKernel>> Context::State::make(const KernelPlan &plan,
                                                                   const PrepareOptions &prepareOptions) {
  std::shared_ptr<const cuda::Device> on;
  if (!plan.target.isCpu()) {
    auto opened = deviceFor(prepareOptions, plan.symbol());
    if (!opened) return propagate(opened);
    on = *opened;
  }
  if (Status status = checkFits(plan.target, on.get()); !status) return propagate(status);
  auto kernel = std::make_shared<LoadedKernel>();
  kernel->plan = plan;
  kernel->family = familyOf(plan.problem, plan.target, plan.role);
  Status status = codeThatLoads(CodeRequest(plan), kernel->report, [&](const CacheEntry &entry, bool &unusable) {
    return load(*kernel, entry, on, unusable);
  });
  if (!status) return propagate(status);
  return kernel;
}

Expected<CudaKernels> Context::State::make(const CudaSource &source, const PrepareOptions &prepareOptions) {
  auto on = deviceFor(prepareOptions, source.name);
  if (!on) return propagate(on);
  const cuda::DeviceInfo &info = (*on)->info();
  auto target = Target::forComputeCapability(info.major, info.minor);
  if (!target) return propagate(target);
  PrepareReport report;
  std::map<std::string, std::unique_ptr<cuda::Module>, std::less<>> modules;
  Status status =
      codeThatLoads(CodeRequest(source, target->name), report, [&](const CacheEntry &entry, bool &unusable) -> Status {
        cuda::Module::Options how;
        how.symbol = source.name;
        how.threadsPerBlock = source.threads;
        how.compilerVersion = cuda::NvrtcVersion::parse(entry.inputs.compiler).cudaVersion();
        auto all = cuda::Module::loadAll(*on, entry.payload, how, source.symbols, &unusable);
        if (!all) return propagate(all);
        for (size_t i = 0; i < all->size(); ++i)
          modules[source.symbols[i]] = std::move((*all)[i]);
        return {};
      });
  if (!status) return propagate(status);
  return CudaKernels(std::move(report), std::move(modules));
}

void Context::State::dump(const std::string &symbol, std::string_view suffix, std::string_view content) {
  if (environment.dumpDir.empty()) return;
  std::error_code code;
  std::filesystem::create_directories(environment.dumpDir, code);
  const std::string path = fmt::format("{}/{}{}", environment.dumpDir, symbol, suffix);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) log->warnOnce(environment.dumpDir, fmt::format("cannot write {} (TILEWRIGHT_DUMP_DIR)", path));
}

} // namespace tilewright
