// Problem level: what is computed, with nothing said about how.
#ifndef TILEWRIGHT_PROBLEM_OPS
#define TILEWRIGHT_PROBLEM_OPS

include "tilewright/dialect/Types.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def AttentionOp : TwOp<"attention", [Symbol, IsolatedFromAbove]> {
  let summary = "O = softmax(mask(score(scale * Q K^T))) V";
  let description = [{
    Region `mask`: (q, k, sq, sk, h, b) -> i1, true where q may see k; empty when everything is visible.
    Region `score`: (s, q, k, sq, sk, h, b) -> f32, the score used instead of the scaled product s; empty for s itself.
    Region `scoreGradient`: the same arguments -> d score / d s, made by `tw-differentiate-score`.
    Query head h reads kv head h floordiv `group`. `position` is the type of positions, i32 or i64. `tables` lists the tables the regions read, in the order of
    Problem::tables.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$dim_qk, I64Attr:$dim_v, I64Attr:$group, TypeAttr:$dtype,
                       TypeAttr:$position, DefaultValuedAttr<StrArrayAttr, "{}">:$tables);
  let regions = (region AnyRegion:$mask, AnyRegion:$score, AnyRegion:$score_gradient);
  let assemblyFormat = [{
    $sym_name attr-dict `mask` $mask `score` $score `score_gradient` $score_gradient
  }];
  let hasRegionVerifier = 1;
}

def YieldOp : TwOp<"yield", [Pure, Terminator, ReturnLike]> {
  let summary = "Result of a mask or score region, or values carried to the next tile";
  let arguments = (ins Variadic<AnyType>:$values);
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
  let builders = [OpBuilder<(ins), [{ build($_builder, $_state, ::mlir::ValueRange{}); }]>];
}

def FloorModOp : TwOp<"floor_mod", [Pure, SameOperandsAndResultType]> {
  let summary = "a - m floor(a / m) for a positive constant m; never negative";
  let description = [{ Problem level only: `tw-tile` expands it into arith operations. }];
  let arguments = (ins Position:$a, Position:$m);
  let results = (outs Position:$result);
  let assemblyFormat = "$a `,` $m attr-dict `:` type($result)";
}

def ReadTableOp : TwOp<"read_table", [Pure]> {
  let summary = "One element of a table: name[position] or name[batch, position]";
  let arguments = (ins StrAttr:$name, I64Attr:$table, Variadic<Position>:$indices);
  let results = (outs AnyTypeOf<[I32, I64, F32]>:$element);
  let assemblyFormat = "$name `table` $table `[` $indices `:` type($indices) `]` attr-dict `:` type($element)";
}

def TableBoundsOp : TwOp<"table_bounds", [Pure, AllTypesMatch<["first", "last"]>, AllTypesMatch<["min", "max"]>]> {
  let summary = "Smallest and largest element of a table over positions first..last, both inclusive";
  let description = [{
    Read from the table's per-tile extents (KernelArgs.h), so it costs a few loads, not a pass over the table. `batch`
    is there for tables whose first axis is B. May be wider than the exact range where first or last lie inside an
    extent tile.
  }];
  let arguments = (ins StrAttr:$name, I64Attr:$table, Optional<Position>:$batch, Position:$first, Position:$last);
  let results = (outs Position:$min, Position:$max);
  let assemblyFormat = [{
    $name `table` $table (`batch` $batch^ `:` type($batch))? `[` $first `to` $last `:` type($first) `]` attr-dict
    `:` type($min)
  }];
}

#endif
