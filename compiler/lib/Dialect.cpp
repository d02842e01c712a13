// The tw dialect: registration, the tile type's syntax, and verifiers.
#include "tilewright/dialect/Tw.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace tilewright::tw;

#include "tilewright/dialect/TwDialect.cpp.inc"

#define GET_TYPEDEF_CLASSES
#include "tilewright/dialect/TwTypes.cpp.inc"

#define GET_OP_CLASSES
#include "tilewright/dialect/TwOps.cpp.inc"

void TwDialect::initialize() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "tilewright/dialect/TwTypes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "tilewright/dialect/TwOps.cpp.inc"
      >();
}

// <128x64xf32>
Type TileType::parse(AsmParser &parser) {
  SmallVector<int64_t, 2> dims;
  Type element;
  if (parser.parseLess() || parser.parseDimensionList(dims, /*allowDynamic=*/false) || parser.parseType(element) ||
      parser.parseGreater())
    return {};
  if (dims.size() != 2) {
    parser.emitError(parser.getNameLoc(), "a tile has two dimensions, found ") << dims.size();
    return {};
  }
  return get(parser.getContext(), dims[0], dims[1], element);
}

void TileType::print(AsmPrinter &printer) const {
  printer << '<' << getRows() << 'x' << getCols() << 'x' << getElementType() << '>';
}

/// Checks a mask or score region: empty, or one block with `arguments` leading types and a yield of `result`.
static LogicalResult verifyFunctionRegion(Operation *op, Region &region, StringRef name, bool takesScore,
                                          bool yieldsNumber) {
  if (region.empty()) return success();
  if (!region.hasOneBlock()) return op->emitOpError() << name << " region has more than one block";
  Block &block = region.front();
  unsigned expected = takesScore ? 7 : 6;
  if (block.getNumArguments() != expected)
    return op->emitOpError() << name << " region takes " << expected << " arguments, found "
                             << block.getNumArguments();
  auto yield = dyn_cast<YieldOp>(block.getTerminator());
  if (!yield || yield.getValues().size() != 1) return op->emitOpError() << name << " region must yield one value";
  Type type = yield.getValues()[0].getType();
  if (yieldsNumber ? !type.isF32() : !type.isInteger(1))
    return op->emitOpError() << name << " region must yield " << (yieldsNumber ? "f32" : "i1") << ", found " << type;
  return success();
}

LogicalResult AttentionOp::verifyRegions() {
  if (getDimQk() < 1 || getDimV() < 1) return emitOpError("head dims must be at least 1");
  if (getGroup() < 1) return emitOpError("group must be at least 1, found ") << getGroup();
  if (failed(verifyFunctionRegion(*this, getMask(), "mask", false, false)) ||
      failed(verifyFunctionRegion(*this, getScore(), "score", true, true)) ||
      failed(verifyFunctionRegion(*this, getScoreGradient(), "score_gradient", true, true)))
    return failure();
  return success();
}

LogicalResult KernelOp::verifyRegions() {
  Block &block = getBody().front();
  if (getParts() < 1) return emitOpError("parts must be at least 1, found ") << getParts();
  if (block.getNumArguments() != (getParts() > 1 ? 6 : 5))
    return emitOpError("body takes (row, head, batch, sq, sk")
           << (getParts() > 1 ? ", part" : "") << "), found " << block.getNumArguments() << " arguments";
  return success();
}

LogicalResult DotOp::verify() {
  TileType a = getA().getType(), b = getB().getType(), result = getResult().getType();
  int64_t inner = getTransposeB() ? b.getCols() : b.getRows(), cols = getTransposeB() ? b.getRows() : b.getCols();
  if (a.getCols() != inner)
    return emitOpError("inner dimensions disagree: ") << a << " and " << b << (getTransposeB() ? " transposed" : "");
  if (result.getRows() != a.getRows() || result.getCols() != cols)
    return emitOpError("result must be ") << a.getRows() << "x" << cols << ", found " << result;
  if (getAcc() && getAcc().getType() != result) return emitOpError("accumulator and result types differ");
  return success();
}

LogicalResult AccumulateOp::verify() {
  TileType a = getA().getType(), b = getB().getType();
  if (a.getRows() == b.getRows()) return success();
  return emitOpError("rows of a and b are summed over and must agree: ") << a << " and " << b;
}

LogicalResult ForeachTileOp::verifyRegions() {
  if (getAxis() != "kv" && getAxis() != "q") return emitOpError("axis must be kv or q, found ") << getAxis();
  if (getParts() < 1 || (getParts() > 1) != static_cast<bool>(getPart()))
    return emitOpError("parts = ") << getParts() << (getPart() ? " with" : " without") << " a part";
  Block &block = getBody().front();
  if (block.getNumArguments() != 2 + getInits().size())
    return emitOpError("body takes (row, partial, carried...): expected ")
           << 2 + getInits().size() << " arguments, found " << block.getNumArguments();
  auto yield = dyn_cast<YieldOp>(block.getTerminator());
  if (!yield || yield.getValues().getTypes() != getResultTypes())
    return emitOpError("body must yield the carried values");
  return success();
}
