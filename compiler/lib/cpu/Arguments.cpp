#include "Arguments.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using arith::CmpIPredicate;

namespace tilewright::cpu {

Value Arguments::field(int64_t offset, Type type) {
  Value &value = known[offset];
  if (!value) {
    OpBuilder::InsertionGuard guard(e);
    e.setInsertionPoint(anchor);
    value = e.load(type, e.advance(block, offset), 4);
  }
  return value;
}

/// All lengths and counts are used in address arithmetic, hence as i64.
Value Arguments::int32(int64_t offset) {
  int64_t key = -1 - offset; // the widened value, apart from the field itself
  if (Value value = known.lookup(key)) return value;
  Value narrow = field(offset, e.i32);
  OpBuilder::InsertionGuard guard(e);
  e.setInsertionPoint(anchor);
  Value wide = e.toI64(narrow);
  return known[key] = wide;
}

static int64_t rowVectorOffset(StringRef tensor) {
  return tensor == "lse"        ? offsetof(KernelArgs, lse)
         : tensor == "lse_rest" ? offsetof(KernelArgs, lseRest)
                                : offsetof(KernelArgs, delta);
}

Value Arguments::length(StringRef tensor) {
  if (isAlongKeys(tensor)) return seqKV();
  if (tensor != "lse_rest") return seqQ();
  Value address = LLVM::PtrToIntOp::create(e, e.i64, field(rowVectorOffset(tensor), e.pointer));
  return e.select(e.compare(CmpIPredicate::eq, address, e.constant(0)), e.constant(0), seqQ());
}

std::optional<HeadView> Arguments::view(StringRef tensor, Value batchEntry, Value head, int64_t elementBytes) {
  if (isRowVector(tensor)) {
    int64_t offset = rowVectorOffset(tensor);
    Value row = e.mul(e.add(e.mul(batchEntry, headsQ()), head), seqQ());
    return HeadView{e.advance(field(offset, e.pointer), e.mul(row, e.constant(4))), e.constant(4)};
  }
  int64_t offset = llvm::StringSwitch<int64_t>(tensor)
                       .Case("q", offsetof(KernelArgs, q))
                       .Case("k", offsetof(KernelArgs, k))
                       .Case("v", offsetof(KernelArgs, v))
                       .Case("o", offsetof(KernelArgs, o))
                       .Case("do", offsetof(KernelArgs, dO))
                       .Case("dq", offsetof(KernelArgs, dQ))
                       .Case("dk", offsetof(KernelArgs, dK))
                       .Case("dv", offsetof(KernelArgs, dV))
                       .Default(-1);
  if (offset < 0) return std::nullopt;
  Value data = field(offset + offsetof(TensorRef, data), e.pointer);
  Value batchStride = field(offset + offsetof(TensorRef, batchStride), e.i64);
  Value headStride = field(offset + offsetof(TensorRef, headStride), e.i64);
  Value rowStride = field(offset + offsetof(TensorRef, rowStride), e.i64);
  Value elements = e.add(e.mul(batchEntry, batchStride), e.mul(head, headStride));
  Value size = e.constant(elementBytes);
  return HeadView{e.advance(data, e.mul(elements, size)), e.mul(rowStride, size)};
}

Value Arguments::state(Value batchEntry, Value head, Value tile, int64_t rows, Value part, int64_t parts,
                       int64_t bytes) {
  Value tiles = arith::DivSIOp::create(e, e.add(seqQ(), e.constant(rows - 1)), e.constant(rows));
  Value owner = e.add(e.mul(batchEntry, headsQ()), head);
  Value index = e.add(e.mul(e.add(e.mul(owner, tiles), tile), e.constant(parts)), part);
  return e.advance(field(offsetof(KernelArgs, partials), e.pointer), e.mul(index, e.constant(bytes)));
}

TableView Arguments::table(int64_t index, Value batchEntry) {
  int64_t offset = offsetof(KernelArgs, tables) + index * sizeof(TableRef);
  TableView view{field(offset + offsetof(TableRef, data), e.pointer),
                 field(offset + offsetof(TableRef, tileMin), e.pointer),
                 field(offset + offsetof(TableRef, tileMax), e.pointer)};
  if (!batchEntry) return view;
  Value four = e.constant(4);
  Value start = e.mul(e.mul(batchEntry, field(offset + offsetof(TableRef, batchStride), e.i64)), four);
  Value extents = e.mul(e.mul(batchEntry, field(offset + offsetof(TableRef, extentBatchStride), e.i64)), four);
  return {e.advance(view.data, start), e.advance(view.tileMin, extents), e.advance(view.tileMax, extents)};
}

} // namespace tilewright::cpu
