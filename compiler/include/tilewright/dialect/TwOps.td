// All of the tw dialect, for TableGen.
#ifndef TILEWRIGHT_TW_OPS
#define TILEWRIGHT_TW_OPS

include "tilewright/dialect/TileOps.td"
include "tilewright/dialect/MachineOps.td"

#endif
