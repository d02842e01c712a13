// Machine level: the statements of a kernel.
#ifndef TILEWRIGHT_MACHINE_OPS
#define TILEWRIGHT_MACHINE_OPS

include "tilewright/dialect/TileOps.td"

#endif
