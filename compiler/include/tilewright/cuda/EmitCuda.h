// Machine level -> CUDA C++ text.
#pragma once

#include "tilewright/Error.h"
#include "mlir/IR/BuiltinOps.h"
#include <string>

namespace tilewright {

/// Self-contained source of the module's one tw.cuda_kernel: the templates it names, its element functions, the kernel.
/// Includes nothing, so NVRTC needs no header search. The text depends on the module alone.
Expected<std::string> emitCuda(mlir::ModuleOp module);

} // namespace tilewright
