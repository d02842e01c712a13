// RUN: tilewright-opt --tw-differentiate-score %s | FileCheck %s

// d/ds (s - 2 tanh(s)) = 1 - 2 (1 - tanh(s)^2); what does not depend on s has no tangent.
// CHECK: score_gradient {
// CHECK: %[[TANH:.*]] = math.tanh
// CHECK: %[[SQUARE:.*]] = arith.mulf %[[TANH]], %[[TANH]]
// CHECK: %[[SLOPE:.*]] = arith.subf %{{.*}}, %[[SQUARE]]
// CHECK: tw.yield
tw.attention @a {dim_qk = 64 : i64, dim_v = 64 : i64, group = 1 : i64, dtype = bf16, position = i32} mask {} score {
^bb0(%s: f32, %q: i32, %k: i32, %sq: i32, %sk: i32, %h: i32, %b: i32):
  %two = arith.constant 2.0 : f32
  %0 = math.tanh %s : f32
  %1 = arith.mulf %0, %two : f32
  %2 = arith.subf %s, %1 : f32
  tw.yield %2 : f32
} score_gradient {}

// A constant score has derivative 0.
// CHECK-LABEL: tw.attention @constant
// CHECK: score_gradient {
// CHECK: %[[ZERO:.*]] = arith.constant 0.000000e+00
// CHECK: tw.yield %[[ZERO]]
tw.attention @constant {dim_qk = 64 : i64, dim_v = 64 : i64, group = 1 : i64, dtype = bf16, position = i32} mask {} score {
^bb0(%s: f32, %q: i32, %k: i32, %sq: i32, %sk: i32, %h: i32, %b: i32):
  %c = arith.constant -3.4e38 : f32
  tw.yield %c : f32
} score_gradient {}
