#include "tilewright/BuiltInCompiler.h"

namespace tilewright {

ContextOptions optionsWithCompiler() { return {}; }

} // namespace tilewright
