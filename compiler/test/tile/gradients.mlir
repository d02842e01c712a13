// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=dkv symbol=k" %s | FileCheck %s --check-prefix=DKV
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=dq symbol=k" %s | FileCheck %s --check-prefix=DQ
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=delta symbol=k" %s | FileCheck %s --check-prefix=DELTA
// RUN: not tilewright-opt --tw-classify-tiles --tw-tile="role=sideways" %s 2>&1 | FileCheck %s --check-prefix=BAD

// dK and dV own kv rows and take the group's query heads in turn; scores are transposed.
// DKV: tw.kernel @k "dkv"
// DKV: scf.for
// DKV: tw.foreach_tile "q"
// DKV: %[[REST:.*]] = tw.load "lse_rest"
// DKV: tw.probability {{.*}}, %[[REST]] transposed
// DKV: tw.softmax_gradient {{.*}} transposed
// DKV: tw.scale
// DKV: tw.store {{.*}} "dk"
// DKV: tw.store {{.*}} "dv"

// DQ: tw.kernel @k "dq"
// DQ-NOT: transposed : <64x64xf32>, <64x1xf32>
// DQ: tw.foreach_tile "kv"
// DQ: tw.store {{.*}} "dq"

// DELTA: tw.row_dot
// DELTA: tw.store {{.*}} "delta"

// BAD: unknown kernel role 'sideways': expected forward, delta, dq, dkv, fused, convert or merge
tw.attention @a {dim_qk = 64 : i64, dim_v = 32 : i64, group = 2 : i64, dtype = f16, position = i32} mask {} score {} score_gradient {}
