// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=forward tile-q=128 tile-kv=64 symbol=fwd" --tw-schedule-sm90="stages=2 warps=8 overlaps-within=true overlaps-between=true longest-first=true rescale-threshold=8" %s | FileCheck %s --check-prefixes=CHECK,LAZY
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=forward tile-q=128 tile-kv=64 symbol=fwd" --tw-schedule-sm90="stages=2 warps=8" %s | FileCheck %s --check-prefixes=CHECK,EXACT
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=forward tile-q=64 tile-kv=64 split-kv=3 symbol=fwd" --tw-schedule-sm90="stages=2 warps=4 packed-heads=4 rescale-threshold=8" %s | FileCheck %s --check-prefix=SHARED
// RUN: tilewright-opt --tw-classify-tiles --tw-tile="role=merge tile-q=64 split-kv=3 symbol=merge" --tw-schedule-sm80="warps=8 packed-heads=4" %s | FileCheck %s --check-prefix=MERGE

// Two consumer groups and the producer's: 384 threads.
// CHECK: tw.cuda_kernel @fwd
// CHECK-SAME: kGroups = 2, kStages = 2, kQueryStages = 1, kStagedChunks = 1;
// A product's operands: S from two addresses, O from registers and an address.
// CHECK-SAME: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
// CHECK-SAME: wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16
// CHECK-SAME: threads = 384

// The producer gives registers away. One of its warps deals, one loads, and K runs one visit ahead of V.
// CHECK: tw.micro "tw::lowerRegisters"<"24">
// LAZY: tw.micro "tw::dealTiles"<"true, kParts">
// EXACT: tw.micro "tw::dealTiles"<"false, kParts">
// CHECK: tw.expression "launch.q"
// CHECK: tw.micro "tw::loadTile"<"TileQ">
// CHECK: tw.micro "tw::loadTile"<"TileK">
// CHECK: tw.while
// CHECK: tw.micro ".next"
// CHECK: tw.micro "tw::loadTile"<"TileK">
// CHECK: tw.micro "tw::loadTile"<"TileV">

// CHECK: tw.micro "tw::raiseRegisters"<"240">
// LAZY: tw.micro "tw::arriveNamed"
// EXACT-NOT: tw::arriveNamed
// CHECK: tw.micro "tw::storeUnseen"

// Whole tiles in a loop of their own: no mask, no maxima unless the sums ask for them.
// LAZY: tw.expression "$0 & !visit.partial & !first"
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

// Tiles that the mask cuts through and the first one, or all of them without a threshold. The first has no product with V.
// CHECK: tw.if
// CHECK: tw.micro "multiplyQK"
// LAZY: tw.micro "tw::commitNoProduct"
// EXACT-NOT: tw::commitNoProduct
// CHECK: tw.expression "!$0"
// CHECK: tw.if
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

// One part of the keys, all heads of a group in a tile: results leave as a state.
// SHARED: tw.cuda_kernel @fwd
// SHARED-SAME: kHeads = 4, kParts = 3;
// SHARED-NOT: "launch.o"
// SHARED: tw.expression "tw::PackedTile<TileQ, kHeads>::bytes"
// SHARED: tw.micro "tw::loadPackedTile"<"TileQ">
// SHARED: tw.micro "tw::storeEmptyState"
// SHARED: tw.micro "tw::storeState"
// SHARED-NOT: tw::storeOutput

// MERGE: tw.cuda_kernel @merge
// MERGE-SAME: kDimV = 32, kTileQ = 64, kHeads = 4, kParts = 3, kWarps = 8;
// MERGE: tw.micro "tw::mergeRow"<"Element, kTileQ, kDimV, kParts">
tw.attention @a {dim_qk = 64 : i64, dim_v = 32 : i64, group = 4 : i64, dtype = bf16, position = i32} mask {} score {} score_gradient {}
