// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=forward tile-q=16 tile-kv=64 split-kv=8 symbol=part" %s | FileCheck %s --check-prefix=PART
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=merge tile-q=16 split-kv=8 symbol=merge" %s | FileCheck %s --check-prefix=MERGE
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=merge tile-q=16 split-kv=8 symbol=merge" --tw-lower-to-cpu %s | FileCheck %s --check-prefix=CPU

// A part walks its share of the tiles and keeps its state.
// PART: tw.kernel @part "forward" attributes {group = 2 : i64, own_rows = 16 : i64, parts = 8 : i64, walk_rows = 64 : i64}
// PART: ^bb0(%[[ROW:[a-z0-9]+]]: i32, %[[HEAD:[a-z0-9]+]]: i32, %[[BATCH:[a-z0-9]+]]: i32, %{{[a-z0-9]+}}: i32, %{{[a-z0-9]+}}: i32, %[[PART:[a-z0-9]+]]: i32):
// PART: %[[STATE:.*]]:3 = tw.foreach_tile "kv" of %[[ROW]] head %[[HEAD]] batch %[[BATCH]] : i32 part %[[PART]] : i32 init
// PART-SAME: parts = 8 : i64
// PART: tw.store_state %[[STATE]]#0, %[[STATE]]#1, %[[STATE]]#2 to{{ ?}}[%[[BATCH]], %[[HEAD]], %[[ROW]]] part %[[PART]] of 8
// PART-NOT: tw.store %
// PART-NOT: tw.softmax_finish

// The states of all parts, in their order.
// MERGE: tw.kernel @merge "merge" attributes {group = 2 : i64, own_rows = 16 : i64, walk_rows = 64 : i64}
// MERGE: %[[M:.*]] = tw.fill 0xFF800000
// MERGE: scf.for %[[N:[a-z0-9]+]] = %c0_i32 to %c8_i32 step %c1_i32 iter_args(%[[A:.*]] = %[[M]], %[[B:.*]] = %{{.*}}, %[[C:.*]] = %{{.*}})
// MERGE: %[[MM:.*]], %[[L:.*]], %[[O:.*]] = tw.load_state{{ ?}}[%{{.*}}, %{{.*}}, %{{.*}}] part %[[N]] of 8 stored bf16
// MERGE: tw.merge(%[[A]], %[[B]], %[[C]]), (%[[MM]], %[[L]], %[[O]])
// MERGE: tw.softmax_finish
// MERGE: tw.store {{.*}} "o"
// MERGE: tw.store {{.*}} "lse"

// CPU: func.func @merge
// CPU-NOT: tw.{{load|merge|store|softmax}}
tw.attention @a {dim_qk = 64 : i64, dim_v = 32 : i64, group = 2 : i64, dtype = bf16, position = i32} mask {} score {} score_gradient {}
