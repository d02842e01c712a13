// The identity of a compiled kernel: a hash of everything its bytes depend on and of nothing else. No time, no path, no
// driver version enters it.
#pragma once

#include "tilewright/Export.h"
#include <string>
#include <vector>

namespace tilewright TILEWRIGHT_PUBLIC {

/// Raised when the meaning of a key's fields changes.
inline constexpr int kKeySchema = 1;

struct KernelKeyInputs {
  std::string generatorId;          ///< Of the compiler and templates; with the plan it stands for the emitted text.
  std::string planText;             ///< KernelPlan::canonicalText()
  std::vector<std::string> options; ///< Compile options, in order.
  std::string architecture;         ///< With its letter ("sm_90a"), or the CPU's level ("x86-64-v3").
  std::string compiler;             ///< "NVRTC 13.0", or what made CPU code ("LLVM 22.1.8").

  bool operator==(const KernelKeyInputs &) const = default;
};

/// SHA-256, 64 hex digits.
std::string kernelKey(const KernelKeyInputs &inputs);

} // namespace tilewright
