// RUN: tilewright-opt --tw-lower-to-cpu=vector-bits=512 %s | FileCheck %s

// A table read at the own rows is one masked load a vector, outside the loop over keys; at the walked key it is one
// scalar load. Floor division by a constant stays in vectors.
// CHECK-LABEL: func.func @scores
// CHECK: scf.if
// CHECK: llvm.intr.masked.load {{.*}} -> vector<16xi32>
// CHECK: scf.for
// CHECK: llvm.load {{.*}} : !llvm.ptr -> i32
// CHECK: arith.cmpi eq, {{.*}} : vector<16xi32>
// CHECK: arith.select {{.*}} : vector<16xi1>, vector<16xf32>
func.func private @mask(%q: i32, %k: i32, %sq: i32, %sk: i32, %h: i32, %b: i32) -> i1 {
  %c = arith.constant 16 : i32
  %own = tw.read_table "doc" table 0 [%q : i32] : i32
  %walked = tw.read_table "doc" table 0 [%k : i32] : i32
  %chunk = arith.floordivsi %walked, %c : i32
  %same = arith.cmpi eq, %own, %chunk : i32
  return %same : i1
}
func.func private @kv_bounds(%first: i32, %last: i32, %sq: i32, %sk: i32, %h: i32, %b: i32) -> (i32, i32, i32, i32) {
  %zero = arith.constant 0 : i32
  return %zero, %sk, %zero, %zero : i32, i32, i32, i32
}

tw.kernel @scores "dq" attributes {own_rows = 16 : i64, walk_rows = 16 : i64, group = 1 : i64} {
^bb0(%row: i32, %head: i32, %batch: i32, %sq: i32, %sk: i32):
  %q = tw.load "q"[%batch, %head, %row] : i32 -> !tw.tile<16x16xf32>
  %zero = tw.fill 0.0 : !tw.tile<16x16xf32>
  %sum = tw.foreach_tile "kv" of %row head %head batch %batch : i32 init(%zero)
      : (!tw.tile<16x16xf32>) -> (!tw.tile<16x16xf32>)
      attributes {own_rows = 16 : i64, walk_rows = 16 : i64, bounds = @kv_bounds, interval} {
  ^bb0(%k_row: i32, %partial: i1, %carried: !tw.tile<16x16xf32>):
    %k = tw.load "k"[%batch, %head, %k_row] : i32 -> !tw.tile<16x16xf32>
    %s = tw.dot %q, %k transposed : !tw.tile<16x16xf32>, !tw.tile<16x16xf32> -> !tw.tile<16x16xf32>
    %masked = tw.mask %s if %partial at %row, %k_row head %head batch %batch fn @mask : !tw.tile<16x16xf32>, i32
    %next = tw.dot %masked, %k acc %carried : !tw.tile<16x16xf32>
        : !tw.tile<16x16xf32>, !tw.tile<16x16xf32> -> !tw.tile<16x16xf32>
    tw.yield %next : !tw.tile<16x16xf32>
  }
  tw.store %sum, "dq"[%batch, %head, %row] : !tw.tile<16x16xf32>, i32
  tw.yield
}
