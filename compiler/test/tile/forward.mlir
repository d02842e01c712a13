// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=forward tile-q=128 tile-kv=64 symbol=fwd" %s | FileCheck %s

// FlashAttention-2, algorithm 1: one pass over kv tiles carrying (m, l, o).
// CHECK: tw.kernel @fwd "forward" attributes {group = 4 : i64, own_rows = 128 : i64, walk_rows = 64 : i64}
// CHECK: ^bb0(%[[ROW:[a-z0-9]+]]: i32, %[[HEAD:[a-z0-9]+]]: i32, %[[BATCH:[a-z0-9]+]]: i32,
// CHECK: %[[KV:.*]] = arith.divsi %[[HEAD]]
// CHECK: %[[Q:.*]] = tw.load "q"[%[[BATCH]], %[[HEAD]], %[[ROW]]] : i32 -> <128x64xbf16>
// CHECK: tw.foreach_tile "kv" of %[[ROW]]
// CHECK: ^bb0(%[[KROW:[a-z0-9]+]]: i32, %[[PARTIAL:[a-z0-9]+]]: i1,
// CHECK: %[[K:.*]] = tw.load "k"[%[[BATCH]], %[[KV]], %[[KROW]]]
// CHECK: %[[S:.*]] = tw.dot %[[Q]], %[[K]] transposed
// CHECK: %[[SCORED:.*]] = tw.score %[[S]]
// CHECK: %[[MASKED:.*]] = tw.mask %[[SCORED]] if %[[PARTIAL]]
// CHECK: tw.softmax_update %{{.*}}, %{{.*}}, %{{.*}}, %[[MASKED]]
// CHECK: tw.dot {{.*}} acc
// CHECK: tw.softmax_finish
// CHECK: tw.store {{.*}} "o"
// CHECK: tw.store {{.*}} "lse"
// CHECK: tw.store {{.*}} "lse_rest"
tw.attention @a {dim_qk = 64 : i64, dim_v = 32 : i64, group = 4 : i64, dtype = bf16, position = i32} mask {} score {} score_gradient {}
