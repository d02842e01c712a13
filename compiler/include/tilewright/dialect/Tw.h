// The tw dialect's C++ face: types and operations generated from the .td files beside.
#pragma once

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "tilewright/dialect/TwDialect.h.inc"

#define GET_TYPEDEF_CLASSES
#include "tilewright/dialect/TwTypes.h.inc"

#define GET_OP_CLASSES
#include "tilewright/dialect/TwOps.h.inc"
