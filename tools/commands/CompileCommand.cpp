// `tilewright compile`: everything `run` does but running, for any target, on a machine with or without a GPU.
#include "Commands.h"
#include "Console.h"
#include "OptionChecks.h"
#include "ProblemOptions.h"
#include "tilewright/Attention.h"
#include "tilewright/Compiler.h"
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tilewright::tool {
namespace {

struct CompileOptions {
  ProblemOptions problem;
  std::string emit;
  bool json = false, verbose = false, fresh = false;
};

struct KernelReport {
  KernelPlan plan;
  ScheduleOrigin origin;
  std::string from; ///< As in PlanChoice.
  CompiledKernel compiled;
  std::vector<std::string> paths;
};

Status writeFile(const std::filesystem::path &path, std::string_view bytes, KernelReport &report) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return fail(Stage::Emit, fmt::format("{}: cannot write: {}", path.string(), std::strerror(errno)));
  report.paths.push_back(path.string());
  return {};
}

/// IR of every stage, the CUDA source with PTX, or the CPU's LLVM IR and assembly, and the machine code.
Status emitFiles(const std::string &folder, Compiler &compiler, Context &context, KernelReport &report) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) return fail(Stage::Emit, fmt::format("--emit {}: cannot create the folder: {}", folder, code.message()));
  std::filesystem::path base = std::filesystem::path(folder) / report.plan.symbol();
  Status written;
  int index = 0;
  auto write = [&](const std::string &suffix, std::string_view bytes) {
    if (written) written = writeFile(base.string() + suffix, bytes, report);
  };
  Expected<GeneratedCode> generated =
      compiler.generate(report.plan, [&](std::string_view stage, std::string_view text) {
        const char *ending = stage == "llvm" ? "ll" : stage == "assembly" ? "s" : "mlir";
        write(fmt::format(".{}-{}.{}", index++, stage, ending), text);
      });
  if (!generated) return propagate(generated);
  const std::vector<char> &payload = report.compiled.entry.payload;
  std::string_view machineCode(payload.data(), payload.size());
  if (report.plan.target.isCpu()) {
    write(".o", machineCode);
    return written;
  }
  write(".cu", generated->cudaSource);
  write(".cubin", machineCode);
  Expected<std::shared_ptr<const cuda::Nvrtc>> nvrtc = context.nvrtc();
  if (!nvrtc) return propagate(nvrtc);
  Expected<cuda::NvrtcResult> ptx = (*nvrtc)->compile({.source = generated->cudaSource,
                                                       .name = generated->symbol,
                                                       .architecture = report.plan.target.name,
                                                       .output = cuda::NvrtcOutput::Ptx});
  if (!ptx) return propagate(ptx);
  write(".ptx", std::string_view(ptx->code.data(), ptx->code.size()));
  return written;
}

nlohmann::json toJson(const KernelReport &report) {
  const PrepareReport &r = report.compiled.report;
  return {{"role", toString(report.plan.role)},
          {"symbol", report.plan.symbol()},
          {"plan", report.plan.hash()},
          {"schedule", report.plan.schedule},
          {"tuning", toString(report.origin)},
          {"registers", r.compile.registers},
          {"shared_bytes", r.compile.sharedBytes + r.dynamicSharedBytes},
          {"spill_bytes", r.compile.spillBytes()},
          {"scratch_bytes", r.scratchBytes},
          {"problems", r.compile.problems},
          {"generate_ms", r.generateMs},
          {"compile_ms", r.compileMs},
          {"cache_hit", r.cacheHit()},
          {"code_bytes", report.compiled.entry.payload.size()},
          {"cache_path", r.path},
          {"paths", report.paths}};
}

void print(const KernelReport &report) {
  const PrepareReport &r = report.compiled.report;
  fmt::print("{:<9} {}\n", toString(report.plan.role), report.plan.symbol());
  fmt::print("  schedule   {}{}\n", tuningNote(report.origin, report.from), report.plan.schedule.canonicalText());
  if (report.plan.target.isCpu())
    fmt::print("  code       {}, {} of scratch a thread\n",
               formatBytes(static_cast<double>(report.compiled.entry.payload.size())),
               formatBytes(static_cast<double>(r.scratchBytes)));
  else
    fmt::print("  code       {} registers, {} of shared memory, {} bytes of spills\n", r.compile.registers,
               formatBytes(static_cast<double>(r.compile.sharedBytes + r.dynamicSharedBytes)), r.compile.spillBytes());
  fmt::print("  {}\n", r.cacheHit() ? fmt::format("cache      hit: {}", r.path)
                                    : fmt::format("compiled   IR and source {:.0f} ms, machine code {:.0f} ms",
                                                  r.generateMs, r.compileMs));
  for (const std::string &problem : r.compile.problems)
    fmt::print("  problem    {}\n", problem);
  for (const std::string &path : report.paths)
    fmt::print("  wrote      {}\n", path);
}

Expected<std::vector<KernelReport>> compileAll(const CompileOptions &options) {
  Expected<Target> target = chooseTarget(options.problem.target);
  if (!target) return propagate(target);
  Expected<ScheduleOverrides> overrides = ScheduleOverrides::parse(options.problem.schedule);
  if (!overrides) return propagate(overrides);
  Expected<ProblemInputs> inputs = makeInputs(options.problem, false);
  if (!inputs) return propagate(inputs);
  static Compiler compiler;
  ContextOptions contextOptions;
  contextOptions.generator = &compiler;
  contextOptions.hostCompiler = Compiler::hostCompiler();
  contextOptions.log = logToStderr(options.verbose);
  if (options.fresh) contextOptions.cacheDir = "";
  Expected<std::shared_ptr<Context>> context = Context::create(contextOptions);
  if (!context) return propagate(context);
  Expected<std::vector<PlanChoice>> plans = (*context)->choose(inputs->problem, *target, *overrides);
  if (!plans) return propagate(plans);
  std::vector<KernelReport> reports;
  for (const PlanChoice &choice : *plans) {
    Progress progress(fmt::format("compiling {}", choice.plan.symbol()));
    Expected<CompiledKernel> compiled = (*context)->compile(choice.plan);
    if (!compiled) return propagate(compiled);
    reports.push_back({choice.plan, choice.origin, choice.from, std::move(*compiled), {}});
    if (options.emit.empty()) continue;
    if (Status status = emitFiles(options.emit, compiler, **context, reports.back()); !status) return propagate(status);
  }
  return reports;
}

} // namespace

void addCompileCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("compile", "Compile a problem's kernels for any target, without running them");
  auto options = std::make_shared<CompileOptions>();
  options->problem.addTo(*command, false);
  CLI::App *output = command->add_option_group("Output");
  output
      ->add_option("--emit", options->emit,
                   "Write the IR after each pass, source, PTX and machine code into this folder")
      ->check(notEmpty());
  output->add_flag("--fresh", options->fresh, "Compile even if the kernel is in the cache, and leave the cache alone");
  output->add_flag("--json", options->json, "One JSON object on stdout");
  output->add_flag("--verbose", options->verbose, "Say what is compiled and where it is cached");
  command->footer(std::string(kExpressionHelp) +
                  "\nEXAMPLES\n"
                  "  tilewright compile --target sm_90a --dim 128 --causal --emit out\n"
                  "  tilewright compile --target sm_80 --backward --schedule tile_q=64,dkv.warps=8 --json\n");
  command->callback([options, &exitCode] {
    Expected<std::vector<KernelReport>> reports = compileAll(*options);
    if (!reports) {
      exitCode = reportError(reports.error());
      return;
    }
    if (!options->json) {
      for (const KernelReport &report : *reports)
        print(report);
      return;
    }
    // The forward kernel's figures stand at the top, every kernel's below "kernels".
    nlohmann::json json = toJson(reports->front()), kernels = nlohmann::json::array();
    for (const KernelReport &report : *reports)
      kernels.push_back(toJson(report));
    json["target"] = reports->front().plan.target.name;
    json["problem"] = reports->front().plan.problem;
    json["kernels"] = kernels;
    fmt::print("{}\n", json.dump());
  });
}

} // namespace tilewright::tool
