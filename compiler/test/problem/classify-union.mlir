// RUN: tilewright-opt --tw-classify-tiles --canonicalize --cse %s | FileCheck %s

// A prefix and a causal part are both upper ends, so their union is one interval again: no class test is needed.
// CHECK-LABEL: func.func private @prefix_kv_bounds
// CHECK: arith.maxsi
// CHECK: tw.attention @prefix {{.*}}interval_kv
tw.attention @prefix {dim_qk = 64 : i64, dim_v = 64 : i64, group = 1 : i64, dtype = bf16, position = i32} mask {
^bb0(%q: i32, %k: i32, %sq: i32, %sk: i32, %h: i32, %b: i32):
  %c100 = arith.constant 100 : i32
  %0 = arith.cmpi slt, %k, %c100 : i32
  %1 = arith.cmpi sle, %k, %q : i32
  %2 = arith.ori %0, %1 : i1
  tw.yield %2 : i1
} score {} score_gradient {}

// Sinks and a window leave a gap between them: the hull is bounded, the classes decide inside it.
// CHECK: tw.attention @sinks
// CHECK-NOT: interval_kv
tw.attention @sinks {dim_qk = 64 : i64, dim_v = 64 : i64, group = 1 : i64, dtype = bf16, position = i32} mask {
^bb0(%q: i32, %k: i32, %sq: i32, %sk: i32, %h: i32, %b: i32):
  %c4 = arith.constant 4 : i32
  %c256 = arith.constant 256 : i32
  %0 = arith.cmpi slt, %k, %c4 : i32
  %1 = arith.subi %q, %k : i32
  %2 = arith.cmpi slt, %1, %c256 : i32
  %3 = arith.ori %0, %2 : i1
  %4 = arith.cmpi sle, %k, %q : i32
  %5 = arith.andi %3, %4 : i1
  tw.yield %5 : i1
} score {} score_gradient {}
