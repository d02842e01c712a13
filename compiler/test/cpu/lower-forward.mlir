// RUN: tilewright-opt --tw-lower-to-cpu=vector-bits=512 %s | FileCheck %s
// RUN: tilewright-opt --tw-lower-to-cpu=vector-bits=256 %s | FileCheck %s --check-prefix=AVX2

// The bounds are expanded into the kernel, which is all that is left.
// CHECK-NOT: func.func private
// CHECK-LABEL: func.func @forward
// CHECK-SAME: %{{.*}}: !llvm.ptr, %{{.*}}: i64, %{{.*}}: i64, %{{.*}}: !llvm.ptr {llvm.noalias}
// CHECK-SAME: tw.scratch_bytes = {{[0-9]+}} : i64
// CHECK-NOT: tw.{{[a-z]+[ (]}}
// CHECK-NOT: call
// Six columns of four vectors stay in registers while the inner dimension runs; the last two of 32 columns follow.
// CHECK: scf.for {{.*}} -> ({{(vector<16xf32>, ){23}vector<16xf32>}}) :
// CHECK: llvm.intr.fmuladd
// CHECK: scf.for {{.*}} -> ({{(vector<16xf32>, ){7}vector<16xf32>}}) :

// AVX2-LABEL: func.func @forward
// AVX2: scf.for {{.*}} -> ({{(vector<8xf32>, ){11}vector<8xf32>}}) :
// AVX2-NOT: vector<16xf32>
func.func private @kv_bounds(%first: i32, %last: i32, %sq: i32, %sk: i32, %h: i32, %b: i32) -> (i32, i32, i32, i32) {
  %zero = arith.constant 0 : i32
  return %zero, %sk, %zero, %sk : i32, i32, i32, i32
}

tw.kernel @forward "forward" attributes {own_rows = 64 : i64, walk_rows = 32 : i64, group = 1 : i64} {
^bb0(%row: i32, %head: i32, %batch: i32, %sq: i32, %sk: i32):
  %q = tw.load "q"[%batch, %head, %row] : i32 -> !tw.tile<64x48xbf16>
  %m0 = tw.fill 0xFF800000 : !tw.tile<64x1xf32>
  %l0 = tw.fill 0.0 : !tw.tile<64x1xf32>
  %o0 = tw.fill 0.0 : !tw.tile<64x48xf32>
  %m, %l, %o = tw.foreach_tile "kv" of %row head %head batch %batch : i32 init(%m0, %l0, %o0)
      : (!tw.tile<64x1xf32>, !tw.tile<64x1xf32>, !tw.tile<64x48xf32>)
      -> (!tw.tile<64x1xf32>, !tw.tile<64x1xf32>, !tw.tile<64x48xf32>)
      attributes {own_rows = 64 : i64, walk_rows = 32 : i64, bounds = @kv_bounds, interval} {
  ^bb0(%k_row: i32, %partial: i1, %m1: !tw.tile<64x1xf32>, %l1: !tw.tile<64x1xf32>, %o1: !tw.tile<64x48xf32>):
    %k = tw.load "k"[%batch, %head, %k_row] : i32 -> !tw.tile<32x48xbf16>
    %v = tw.load "v"[%batch, %head, %k_row] : i32 -> !tw.tile<32x48xbf16>
    %s0 = tw.dot %q, %k transposed : !tw.tile<64x48xbf16>, !tw.tile<32x48xbf16> -> !tw.tile<64x32xf32>
    %s1 = tw.score %s0 at %row, %k_row head %head batch %batch : !tw.tile<64x32xf32>, i32
    %s2 = tw.mask %s1 if %partial at %row, %k_row head %head batch %batch : !tw.tile<64x32xf32>, i32
    %m2, %l2, %o2, %p = tw.softmax_update %m1, %l1, %o1, %s2
        : !tw.tile<64x1xf32>, !tw.tile<64x48xf32>, !tw.tile<64x32xf32>
    %o3 = tw.dot %p, %v acc %o2 : !tw.tile<64x48xf32>
        : !tw.tile<64x32xf32>, !tw.tile<32x48xbf16> -> !tw.tile<64x48xf32>
    tw.yield %m2, %l2, %o3 : !tw.tile<64x1xf32>, !tw.tile<64x1xf32>, !tw.tile<64x48xf32>
  }
  %of, %lse, %rest = tw.softmax_finish %m, %l, %o : !tw.tile<64x1xf32>, !tw.tile<64x48xf32>
  tw.store %of, "o"[%batch, %head, %row] : !tw.tile<64x48xf32>, i32
  tw.store %lse, "lse"[%batch, %head, %row] : !tw.tile<64x1xf32>, i32
  tw.store %rest, "lse_rest"[%batch, %head, %row] : !tw.tile<64x1xf32>, i32
  tw.yield
}
