// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=fused symbol=k" %s | FileCheck %s --check-prefix=FUSED
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=convert symbol=k" %s | FileCheck %s --check-prefix=CONVERT
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=fused symbol=k" %s \
// RUN:   | tilewright-opt --tw-schedule-sm80="column-warps=2" | FileCheck %s --check-prefix=MACHINE
// RUN: not tilewright-opt --tw-classify-tiles --tw-tile="role=fused symbol=k" --tw-lower-to-cpu %s 2>&1 \
// RUN:   | FileCheck %s --check-prefix=CPU

// dK and dV as in dkv, and each tile's share of dQ added to sums of the query head that is visited.
// FUSED: tw.kernel @k "fused"
// FUSED: scf.for
// FUSED: tw.foreach_tile "q"
// FUSED: %[[DS:.*]] = tw.softmax_gradient {{.*}} transposed
// FUSED: tw.accumulate %[[DS]], %{{.*}}, "dq"[{{.*}}] centred : <64x64xf32>, <64x64xf16>, i32
// FUSED: tw.store {{.*}} "dk"
// FUSED: tw.store {{.*}} "dv"

// CONVERT: tw.kernel @k "convert"
// CONVERT: %[[SUMS:.*]] = tw.load_sums "dq"[{{.*}}] of f16 centred bounds @a_kv_bounds : i32 -> <64x64xf32>
// CONVERT: %[[DQ:.*]] = tw.scale %[[SUMS]]
// CONVERT: tw.store %[[DQ]], "dq"

// One barrier between dS's stores and the products that read all of it; the row sums are one warp column's.
// MACHINE: tw.micro "tw::scoreGradientsTransposed"
// MACHINE: tw.micro "tw::storeShared"
// MACHINE: tw.micro "tw::storeShared"
// MACHINE-NEXT: tw.micro "__syncthreads"
// MACHINE: tw.micro "tw::multiply"
// MACHINE: tw.micro "tw::multiply"
// MACHINE: tw.micro "tw::multiplyFromTransposed"
// MACHINE: tw.micro "tw::reduceTile"<"kColsSums">
// MACHINE: tw.if
// MACHINE: tw.micro "tw::reduceRowSums"<"kColsSums">

// CPU: 'tw.accumulate' op
tw.attention @a {dim_qk = 64 : i64, dim_v = 32 : i64, group = 2 : i64, dtype = f16, position = i32} mask {} score {} score_gradient {}
