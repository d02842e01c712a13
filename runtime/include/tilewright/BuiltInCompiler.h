// The compiler that a library carries: libtilewright has one, libtilewright-runtime none.
#pragma once

#include "tilewright/Context.h"
#include "tilewright/Export.h"

namespace tilewright TILEWRIGHT_PUBLIC {

/// Options of a Context that compiles what no cache holds. From libtilewright-runtime they name no compiler, and such a
/// Context runs what caches and bundles hold.
ContextOptions optionsWithCompiler();

} // namespace tilewright
