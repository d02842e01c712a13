// The compiler's passes, in the order they run. Summary and options appear in `tilewright-opt --help`.
#ifndef TILEWRIGHT_PASSES
#define TILEWRIGHT_PASSES

include "mlir/Pass/PassBase.td"

def DifferentiateScore : Pass<"tw-differentiate-score", "::mlir::ModuleOp"> {
  let summary = "Fill tw.attention's score_gradient region with d score / d s (forward mode)";
}

def ClassifyTiles : Pass<"tw-classify-tiles", "::mlir::ModuleOp"> {
  let summary = "Derive from a mask which tiles are empty, full or partial";
  let description = [{
    For each tw.attention @name adds functions that bound and classify tiles of any size:

      @name_kv_bounds(q_first, q_last, sq, sk, h, b) -> (touched begin, touched end, full begin, full end)
      @name_q_bounds(k_first, k_last, ...)           the same along q, for dK and dV
      @name_classes(q_first, q_last, k_first, k_last, ...) -> (possible, certain)

    One method for every mask: the mask is evaluated over the tile's box of positions instead of at a point. Numbers
    become intervals of linear forms (exact for affine terms, floordiv and table bounds), booleans become (possible,
    certain), and comparisons that can be solved for k (or q) become bounds. Sound for any mask by construction: an
    empty tile has nothing visible, a full one everything; exact for causal, windows, prefix, chunks, documents.
    `interval_kv` and `interval_q` are set on the op where bounds alone decide.
  }];
}

def Tile : Pass<"tw-tile", "::mlir::ModuleOp"> {
  let summary = "Problem level -> tile level: write one kernel of tw.attention as a loop over tiles";
  let options = [
    Option<"role", "role", "std::string", "\"forward\"", "forward, delta, dq, dkv, fused, convert or merge">,
    Option<"tileQ", "tile-q", "int64_t", "64", "rows of q in a tile">,
    Option<"tileKV", "tile-kv", "int64_t", "64", "rows of k and v in a tile">,
    Option<"splitKV", "split-kv", "int64_t", "1", "blocks that share the keys of a q tile (forward, merge)">,
    Option<"symbol", "symbol", "std::string", "\"kernel\"", "name of the kernel">,
  ];
}

def ScheduleSm80 : Pass<"tw-schedule-sm80", "::mlir::ModuleOp"> {
  let summary = "Tile level -> machine level for sm_80 and newer: cp.async rings and mma.sync";
  let description = [{
    Every warp owns rows of the owned tile and does the same work (FlashAttention-2's partition). Tiles that the block
    owns are copied to shared memory once; tiles that it walks over go through a ring of `stages`: at the top of an
    iteration one barrier proves that the oldest copies have landed and that the slot read last is free, then the copy
    for the tile `stages - 1` visits ahead is issued; one stage copies and computes in turn. P and dS stay in registers
    as left operands of the next product, unless `column-warps` share rows: then they pass through shared memory.

    fused adds dQ's share of each tile right after dK's: all warps split dQ's tile anew, read dS^T from shared memory
    and add their fragments to the sums in global memory.
  }];
  let options = [
    Option<"stages", "stages", "int64_t", "2", "depth of the ring">,
    Option<"warps", "warps", "int64_t", "4", "warps of a block">,
    Option<"columnWarps", "column-warps", "int64_t", "1", "warps that share rows and split columns (dkv, fused)">,
    Option<"minBlocks", "min-blocks", "int64_t", "1", "blocks an SM should hold">,
    Option<"longestFirst", "longest-first", "bool", "false", "take tiles from the end">,
    Option<"rescaleThreshold", "rescale-threshold", "double", "0.0", "growth of a row's maximum, in log2 units, that is left unscaled">,
    Option<"packedHeads", "packed-heads", "int64_t", "1", "query heads of one kv head that share a q tile (merge)">,
    Option<"rowWarpsOfDQ", "row-warps-of-dq", "int64_t", "1", "warps along the rows of dQ's tile (fused); the others split its columns">,
  ];
}

def ScheduleSm90 : Pass<"tw-schedule-sm90", "::mlir::ModuleOp"> {
  let summary = "Tile level -> machine level for sm_90a, forward: TMA, wgmma, specialised warp groups";
  let description = [{
    One block an SM. One warp group produces: a warp deals out q tiles (templates/sm90/TileStream.cuh), a warp loads Q, K
    and V through rings of slots guarded by mbarriers. The other warp groups consume: each owns 64 rows of the q tile,
    issues S = Q K^T of a visit together with O += P V of the visit before, and turns S into P in registers. K's ring and
    V's are apart because S runs one visit ahead.

    With `overlaps-within` the softmax runs while the group's own P V is in flight; with `overlaps-between` groups take
    turns at issuing, so that one group's softmax lies under another's products. Visits that the mask cuts through, and
    the first of a tile, look for maxima before exponentials; the others do not look at all and find out from the sums
    whether they should have (templates/sm90/Softmax.cuh, outgrew).

    A kernel in parts walks one part's share of the visits and stores its state instead of O and LSE
    (templates/common/State.cuh). With `packed-heads` row r of a tile is head r % N of a group at query r / N.
  }];
  let options = [
    Option<"stages", "stages", "int64_t", "2", "slots of K's ring and of V's">,
    Option<"warps", "warps", "int64_t", "8", "consumer warps: four for each 64 rows of the q tile">,
    Option<"queryStages", "query-stages", "int64_t", "1", "slots of Q's ring">,
    Option<"stagedChunks", "staged-chunks", "int64_t", "1", "chunks of 64 columns that a warp stages of its output">,
    Option<"overlapsWithin", "overlaps-within", "bool", "false", "softmax under the group's own product">,
    Option<"overlapsBetween", "overlaps-between", "bool", "false", "groups take turns">,
    Option<"longestFirst", "longest-first", "bool", "false", "deal the longest tiles first">,
    Option<"packedHeads", "packed-heads", "int64_t", "1", "query heads of one kv head that share a q tile">,
    Option<"rescaleThreshold", "rescale-threshold", "double", "0.0", "growth of a row's maximum, in log2 units, that is left unscaled; 0 looks for maxima in every visit">,
  ];
}

def LowerToCpu : Pass<"tw-lower-to-cpu", "::mlir::ModuleOp"> {
  let summary = "Tile level -> vector code for a CPU";
  let description = [{
    Each tw.kernel @name becomes func.func @name(%args: !llvm.ptr, %begin: i64, %end: i64, %scratch: !llvm.ptr): blocks
    [begin, end) of the grid, %args pointing to KernelArgs, %scratch to memory of the thread's own, 64-byte aligned, of
    as many bytes as the function's attribute `tw.scratch_bytes` says. Block x is tile x mod T of head (x div T) mod H
    of batch entry x div (T H), where T is the number of tiles and H that of heads; with `longest_first` on the kernel,
    tiles count from the last one down. Of a kernel in N parts, block x is part x mod N of what x div N says. Masks, scores and bounds are expanded in place. The result holds arith, math,
    scf, vector and llvm operations only and calls nothing.
  }];
  let options = [
    Option<"vectorBits", "vector-bits", "int64_t", "512", "width of a vector register: 512, 256 or 128">,
  ];
  let dependentDialects = ["::mlir::LLVM::LLVMDialect", "::mlir::vector::VectorDialect"];
}

#endif
