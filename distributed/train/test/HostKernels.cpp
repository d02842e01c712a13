#include "HostKernels.h"
#include "DeviceOnHost.h"
#include "step/Optimizer.cuh"
#include "train/Layers.cuh"
#include <map>
#include <mutex>
#include <string>

namespace {

using Run = void (*)(unsigned blocks, unsigned threads, void **parameters);

template <auto kernel> struct RunnerOf;
template <class Args, void (*kernel)(Args)> struct RunnerOf<kernel> {
  using Plain = std::remove_const_t<Args>;
  static void go(unsigned blocks, unsigned threads, void **parameters) {
    const Plain args = *static_cast<const Plain *>(parameters[0]);
    device_on_host::runGrid(blocks, threads, [&] { kernel(args); });
  }
};

#define ENTRY(name)                                                                                                    \
  { #name, RunnerOf < &name> ::go }
#define ENTRIES(name) ENTRY(name##_f32), ENTRY(name##_bf16)
#define ALL_ENTRIES(name) ENTRIES(name##_f32), ENTRIES(name##_bf16)

const std::map<std::string, Run> kKernels = {
    ENTRY(tw_step_convert_f32_bf16),
    ENTRY(tw_step_convert_bf16_f32),
    ENTRIES(tw_step_norm),
    ENTRY(tw_step_sum_norms),
    ENTRY(tw_step_scale),
    ALL_ENTRIES(tw_step_adamw),
    ALL_ENTRIES(tw_train_convert),
    ALL_ENTRIES(tw_train_norm),
    ALL_ENTRIES(tw_train_norm_gradient),
    ENTRIES(tw_train_norm_weight),
    ENTRIES(tw_train_norm_weight_sum),
    ENTRIES(tw_train_rotary),
    ENTRIES(tw_train_swiglu),
    ENTRIES(tw_train_swiglu_gradient),
    ENTRIES(tw_train_cross_entropy),
    ENTRY(tw_train_loss),
    ALL_ENTRIES(tw_train_embedding),
    ALL_ENTRIES(tw_train_embedding_gradient),
};

} // namespace

void runKernelOnHost(const char *symbol, unsigned blocks, unsigned threads, void **parameters) {
  static std::mutex one; // shared memory is static
  std::lock_guard lock(one);
  if (const auto found = kKernels.find(symbol); found != kKernels.end())
    return found->second(blocks, threads, parameters);
  if (runAttentionOnHost(symbol, parameters)) return;
  std::fprintf(stderr, "no kernel %s on the host\n", symbol);
  std::abort();
}
