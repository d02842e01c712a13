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
    Option<"role", "role", "std::string", "\"forward\"", "forward, delta, dq or dkv">,
    Option<"tileQ", "tile-q", "int64_t", "64", "rows of q in a tile">,
    Option<"tileKV", "tile-kv", "int64_t", "64", "rows of k and v in a tile">,
    Option<"symbol", "symbol", "std::string", "\"kernel\"", "name of the kernel">,
  ];
}

#endif
