#include "tilewright/BuiltInCompiler.h"
#include "tilewright/Compiler.h"

namespace tilewright {

ContextOptions optionsWithCompiler() {
  static Compiler compiler; // holds nothing, so contexts may share it
  ContextOptions options;
  options.generator = &compiler;
  options.hostCompiler = Compiler::hostCompiler();
  return options;
}

} // namespace tilewright
