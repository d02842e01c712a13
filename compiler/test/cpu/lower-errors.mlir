// RUN: not tilewright-opt --tw-lower-to-cpu %s 2>&1 | FileCheck %s
// RUN: not tilewright-opt --tw-lower-to-cpu=vector-bits=333 %s 2>&1 | FileCheck %s --check-prefix=WIDTH

// CHECK: error: 'tw.load' op unknown tensor 'w'
// WIDTH: vector-bits must be 128, 256 or 512, found 333
tw.kernel @bad "delta" attributes {own_rows = 16 : i64, walk_rows = 16 : i64, group = 1 : i64} {
^bb0(%row: i32, %head: i32, %batch: i32, %sq: i32, %sk: i32):
  %w = tw.load "w"[%batch, %head, %row] : i32 -> !tw.tile<16x16xf32>
  tw.yield
}
