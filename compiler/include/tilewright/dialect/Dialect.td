// The tw dialect: attention, from the problem a user states down to the statements of a kernel.
//
// Three levels, each printable and tested on its own:
//   problem  tw.attention with a mask region and a score region                           (ProblemOps.td)
//   tile     tw.kernel over tiles: load, dot, softmax_update, store; target-independent   (TileOps.td)
//   machine  explicit shared memory, register fragments, copies and barriers              (MachineOps.td)
#ifndef TILEWRIGHT_DIALECT
#define TILEWRIGHT_DIALECT

include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

def TwDialect : Dialect {
  let name = "tw";
  let cppNamespace = "::tilewright::tw";
  let summary = "Attention kernels, from problem to machine";
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::func::FuncDialect", "::mlir::math::MathDialect",
                           "::mlir::scf::SCFDialect"];
  let useDefaultTypePrinterParser = 1;
}

class TwType<string name, string typeMnemonic, list<Trait> traits = []> : TypeDef<TwDialect, name, traits> {
  let mnemonic = typeMnemonic;
}

class TwOp<string mnemonic, list<Trait> traits = []> : Op<TwDialect, mnemonic, traits>;

// Positions, lengths, heads and batch entries: i32, or i64 where a mask's arithmetic needs it.
def Position : AnyTypeOf<[I32, I64], "position">;

#endif
