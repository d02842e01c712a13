// LLVM's description of the machine that CPU kernels are compiled for.
#pragma once

#include "tilewright/Error.h"
#include "llvm/Target/TargetMachine.h"
#include <memory>

namespace tilewright::cpu {

/// A code generator for "x86-64-v2", "x86-64-v3" or "x86-64-v4". Thread-safe.
Expected<std::unique_ptr<llvm::TargetMachine>> createTargetMachine(const std::string &level);

} // namespace tilewright::cpu
