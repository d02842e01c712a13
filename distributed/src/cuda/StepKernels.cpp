#include "StepKernels.h"
#include "tilewright/Templates.h"

namespace tilewright::dist {

const CudaSource &stepKernels() {
  static const CudaSource source = [] {
    const std::string_view names[] = {"step/Optimizer.cuh"};
    CudaSource made{"tw_step", assembleTemplates(names), {}, kStepThreads};
    made.symbols = {"tw_step_convert_f32_bf16", "tw_step_convert_bf16_f32", "tw_step_norm_f32",
                    "tw_step_norm_bf16",        "tw_step_sum_norms",        "tw_step_scale",
                    "tw_step_adamw_f32_f32",    "tw_step_adamw_f32_bf16",   "tw_step_adamw_bf16_f32",
                    "tw_step_adamw_bf16_bf16"};
    return made;
  }();
  return source;
}

} // namespace tilewright::dist
