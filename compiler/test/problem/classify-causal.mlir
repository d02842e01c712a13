// RUN: tilewright-opt --tw-classify-tiles --canonicalize --cse %s | FileCheck %s

// Causal gives one interval along both axes, and bounds in closed form from the first and last owned row.

// CHECK-LABEL: func.func private @causal_kv_bounds
// CHECK-SAME: (%[[FIRST:.*]]: i32, %[[LAST:.*]]: i32, %[[SQ:.*]]: i32, %[[SK:.*]]: i32, %{{.*}}: i32, %{{.*}}: i32)
// CHECK-DAG: %[[ZERO:.*]] = arith.constant 0 : i32
// CHECK-DAG: %[[ONE:.*]] = arith.constant 1 : i32
// Rows past the end do not widen the box.
// CHECK: %[[END:.*]] = arith.subi %[[SQ]], %[[ONE]]
// CHECK: %[[CLAMPED:.*]] = arith.minsi %[[LAST]], %[[END]]
// CHECK: %[[TOUCH:.*]] = arith.minsi %{{.*}}, %[[SK]]
// CHECK: %[[FULL:.*]] = arith.minsi %{{.*}}, %[[SK]]
// CHECK: return %[[ZERO]], %[[TOUCH]], %[[ZERO]], %[[FULL]]
// CHECK-LABEL: func.func private @causal_classes
// CHECK: return %{{.*}}, %{{.*}} : i1, i1
// CHECK: tw.attention @causal {{.*}}interval_kv, interval_q
tw.attention @causal {dim_qk = 64 : i64, dim_v = 64 : i64, group = 1 : i64, dtype = bf16, position = i32} mask {
^bb0(%q: i32, %k: i32, %sq: i32, %sk: i32, %h: i32, %b: i32):
  %0 = arith.addi %q, %sk : i32
  %1 = arith.subi %0, %sq : i32
  %2 = arith.cmpi sle, %k, %1 : i32
  tw.yield %2 : i1
} score {} score_gradient {}
