// The CPU target's two halves: tile-level IR -> relocatable object, and object -> callable code.
// Both are thread-safe, the first as long as each call has an MLIR context of its own.
#pragma once

#include "mlir/IR/BuiltinOps.h"
#include "tilewright/CodeGenerator.h"

namespace tilewright {

struct HostObject {
  std::vector<char> bytes;  ///< ELF, position-independent, without undefined symbols
  int64_t scratchBytes = 0; ///< Working memory of a thread
};

/// Texts on the way to an object, for people to read.
struct HostTexts {
  std::string lowered; ///< After tw-lower-to-cpu
  std::string llvm;    ///< LLVM IR as it goes to the code generator
  std::string assembly;
};

/// Compiles the tw.kernel named `symbol` in `module`, which is consumed, for target.cpuLevel. Fills `texts` if given.
/// An error carries the compiler's diagnostics as its log.
Expected<HostObject> compileToObject(mlir::ModuleOp module, const Target &target, const std::string &symbol,
                                     HostTexts *texts = nullptr);

/// Links an object that compileToObject made into this process. The code lives as long as the result.
Expected<std::unique_ptr<HostCode>> loadObject(std::span<const char> object, const std::string &symbol);

/// "LLVM 22.1.8": what CPU code is made with.
std::string hostCompilerVersion();

} // namespace tilewright
