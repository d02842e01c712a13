#include "StepKernels.h"
#include "tilewright/Templates.h"
#include <fmt/format.h>

namespace tilewright::dist {
namespace {

constexpr const char *kSymbols[] = {
    "tw_step_convert_f32_bf16", "tw_step_convert_bf16_f32", "tw_step_norm_f32",
    "tw_step_norm_bf16",        "tw_step_sum_norms",        "tw_step_scale",
    "tw_step_adamw_f32_f32",    "tw_step_adamw_f32_bf16",   "tw_step_adamw_bf16_f32",
    "tw_step_adamw_bf16_bf16",
};

} // namespace

Expected<cuda::NvrtcResult> StepKernels::compile(const cuda::Nvrtc &compiler, const std::string &architecture) {
  const std::string_view names[] = {"step/Optimizer.cuh"};
  const std::string source = assembleTemplates(names);
  return compiler.compile({source, "tw_step", architecture, {}, cuda::NvrtcOutput::Cubin, {}});
}

Expected<StepKernels> StepKernels::load(const std::shared_ptr<const cuda::Device> &device,
                                        const cuda::Nvrtc &compiler) {
  const cuda::DeviceInfo &info = device->info();
  Expected<cuda::NvrtcResult> compiled = compile(compiler, fmt::format("sm_{}{}", info.major, info.minor));
  if (!compiled) return propagate(compiled);
  StepKernels kernels;
  for (const char *symbol : kSymbols) {
    auto module =
        cuda::Module::load(device, compiled->code, {symbol, 0, kStepThreads, compiler.version().cudaVersion()});
    if (!module) return propagate(module);
    kernels.modules[symbol] = std::move(*module);
  }
  return kernels;
}

} // namespace tilewright::dist
