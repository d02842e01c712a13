// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=forward tile-q=128 tile-kv=64 symbol=fwd" --tw-schedule-sm90="stages=2 warps=8 overlaps-within=true overlaps-between=true longest-first=true rescale-threshold=8" %s | FileCheck %s --check-prefixes=CHECK,LAZY
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=forward tile-q=128 tile-kv=64 symbol=fwd" --tw-schedule-sm90="stages=2 warps=8" %s | FileCheck %s --check-prefixes=CHECK,EXACT

// Two consumer groups and the producer's: 384 threads.
// CHECK: tw.cuda_kernel @fwd
// CHECK-SAME: kGroups = 2, kStages = 2, kQueryStages = 1, kStagedChunks = 1;
// A product's operands: S from two addresses, O from registers and an address.
// CHECK-SAME: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
// CHECK-SAME: wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16
// CHECK-SAME: threads = 384

// The producer gives registers away. One of its warps deals, one loads, and K runs one visit ahead of V.
// CHECK: tw.micro "tw::lowerRegisters"<"24">
// LAZY: tw.micro "tw::dealTiles"<"true">
// EXACT: tw.micro "tw::dealTiles"<"false">
// CHECK: tw.expression "launch.q"
// CHECK: tw.micro "tw::loadTile"<"TileQ">
// CHECK: tw.micro "tw::loadTile"<"TileK">
// CHECK: tw.while
// CHECK: tw.micro ".next"
// CHECK: tw.micro "tw::loadTile"<"TileK">
// CHECK: tw.micro "tw::loadTile"<"TileV">

// A tile begins with a product of its own.
// CHECK: tw.micro "tw::raiseRegisters"<"240">
// LAZY: tw.micro "tw::arriveNamed"
// EXACT-NOT: tw::arriveNamed
// CHECK: tw.micro "tw::storeUnseen"
// CHECK: tw.micro "multiplyQK"
// CHECK: tw.micro "waitScores"
// CHECK: tw.micro "tw::updateMaxima"
// CHECK: tw.micro "tw::exponentiate"

// Whole tiles in a loop of their own: no mask, no maxima unless the sums ask for them.
// LAZY: tw.expression "$0 & !visit.partial"
// LAZY: tw.while
// LAZY: tw.micro "tw::syncNamed"
// LAZY-NEXT: tw.field
// LAZY: tw.micro "multiplyQK"
// LAZY: tw.micro "multiplyPV"
// LAZY: tw.micro "tw::arriveNamed"
// LAZY: tw.micro "waitScoresFirst"
// LAZY-NOT: tw::applyMask
// LAZY: tw.micro "tw::exponentiate"
// LAZY: tw.micro "tw::outgrew"
// LAZY: tw.if
// LAZY: tw.micro "tw::recomputeScores"
// LAZY: tw.micro "tw::updateMaxima"
// LAZY: tw.micro "waitOutput"

// Tiles that the mask cuts through, or all of them without a threshold.
// CHECK: tw.micro "multiplyQK"
// CHECK: tw.micro "multiplyPV"
// EXACT: tw.micro "waitBoth"
// LAZY: tw.micro "waitScoresFirst"
// CHECK: tw.micro "tw::applyMask"
// CHECK: tw.micro "tw::updateMaxima"
// CHECK: tw.micro "tw::exponentiate"
// EXACT-NOT: tw::outgrew

// The last product, and out.
// CHECK: tw.micro "multiplyPV"
// CHECK: tw.micro "tw::finishRows"
// CHECK: tw.micro "tw::storeOutput"
// CHECK: tw.micro "tw::storeRowPair"
tw.attention @a {dim_qk = 64 : i64, dim_v = 32 : i64, group = 4 : i64, dtype = bf16, position = i32} mask {} score {} score_gradient {}
