#include "RowLoops.h"

namespace tilewright::train {

const RowLoops &RowLoops::get() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw"))
    return level4::kLoops;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return level3::kLoops;
#endif
  return level2::kLoops;
}

} // namespace tilewright::train
