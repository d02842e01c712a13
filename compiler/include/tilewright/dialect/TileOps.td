// Tile level: FlashAttention readable as a loop over tiles, the same for every target.
#ifndef TILEWRIGHT_TILE_OPS
#define TILEWRIGHT_TILE_OPS

include "tilewright/dialect/ProblemOps.td"
include "mlir/Interfaces/InferTypeOpInterface.td"

def KernelOp : TwOp<"kernel", [Symbol, IsolatedFromAbove]> {
  let summary = "A grid of independent blocks, each owning one tile of rows of one head of one batch entry";
  let description = [{
    Body: ^bb(row, head, batch, sq, sk), all of one position type. `row` is the first row of the owned tile: of q for
    forward, delta, dq and convert; of k and v for dkv and fused, where `head` counts kv heads. `own_rows` is the owned tile's height,
    `walk_rows` that of the tiles walked over. With `parts` above 1 the walk of every owned tile is cut into so many
    blocks, and a sixth argument says which of them this one is, from 0.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, StrAttr:$role, I64Attr:$own_rows, I64Attr:$walk_rows, I64Attr:$group,
                       DefaultValuedAttr<I64Attr, "1">:$parts);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name $role attr-dict-with-keyword $body";
  let hasRegionVerifier = 1;
}

def LoadOp : TwOp<"load", [Pure, AllTypesMatch<["batch", "head", "row"]>]> {
  let summary = "Rows row.. of one head of a tensor; rows past the sequence's end read as zero";
  let description = [{
    `tensor` is q, k, v, o, do (an R x dim tile of the stored type) or lse, lse_rest, delta (R x 1, or 1 x R, of f32).
    lse_rest is optional at run time: where the caller has none it reads as zero, and stores to it are dropped.
  }];
  let arguments = (ins StrAttr:$tensor, Position:$batch, Position:$head, Position:$row);
  let results = (outs TileType:$tile);
  let assemblyFormat = "$tensor `[` $batch `,` $head `,` $row `]` attr-dict `:` type($batch) `->` type($tile)";
}

def StoreOp : TwOp<"store", [AllTypesMatch<["batch", "head", "row"]>]> {
  let summary = "Writes a tile, converted to the tensor's type; rows past the sequence's end are dropped";
  let arguments = (ins TileType:$tile, StrAttr:$tensor, Position:$batch, Position:$head, Position:$row);
  let assemblyFormat = "$tile `,` $tensor `[` $batch `,` $head `,` $row `]` attr-dict `:` type($tile) `,` type($batch)";
}

def StoreStateOp : TwOp<"store_state", [AllTypesMatch<["batch", "head", "row", "part"]>, AllTypesMatch<["m", "l"]>]> {
  let summary = "Keeps the state (m, l, o) of part `part` of `parts` of the tile of query rows row.. for merging";
  let arguments = (ins F32Tile:$m, F32Tile:$l, F32Tile:$o, Position:$batch, Position:$head, Position:$row,
                       Position:$part, I64Attr:$parts);
  let assemblyFormat = [{
    $m `,` $l `,` $o `to` `[` $batch `,` $head `,` $row `]` `part` $part `of` $parts attr-dict
    `:` type($m) `,` type($o) `,` type($batch)
  }];
}

def LoadStateOp : TwOp<"load_state", [Pure, AllTypesMatch<["batch", "head", "row", "part"]>, AllTypesMatch<["m", "l"]>]> {
  let summary = "A state that store_state kept, of attention over tensors of type `stored`; only to be read";
  let arguments = (ins Position:$batch, Position:$head, Position:$row, Position:$part, I64Attr:$parts, TypeAttr:$stored);
  let results = (outs F32Tile:$m, F32Tile:$l, F32Tile:$o);
  let assemblyFormat = [{
    `[` $batch `,` $head `,` $row `]` `part` $part `of` $parts `stored` $stored attr-dict
    `:` type($batch) `->` type($m) `,` type($o)
  }];
}

def MergeOp : TwOp<"merge", [Pure, AllTypesMatch<["m", "l", "other_m", "other_l", "m_next", "l_next"]>,
    AllTypesMatch<["o", "other_o", "o_next"]>]> {
  let summary = "The state of two disjoint sets of keys, from their states";
  let description = [{
    M = max(m, m2), l' = exp(m - M) l + exp(m2 - M) l2, o' = exp(m - M) o + exp(m2 - M) o2 (Flash-Decoding's
    reduction). Associative and commutative, with (-inf, 0, 0), a set of which nothing is seen, as its unit.
  }];
  let arguments = (ins F32Tile:$m, F32Tile:$l, F32Tile:$o, F32Tile:$other_m, F32Tile:$other_l, F32Tile:$other_o);
  let results = (outs F32Tile:$m_next, F32Tile:$l_next, F32Tile:$o_next);
  let assemblyFormat = [{
    `(` $m `,` $l `,` $o `)` `,` `(` $other_m `,` $other_l `,` $other_o `)` attr-dict `:` type($m) `,` type($o)
  }];
}

def AccumulateOp : TwOp<"accumulate", [AllTypesMatch<["batch", "head", "row"]>]> {
  let summary = "sums[row..] += a^T b: blocks add to the same f32 sums in global memory, in any order"
                " (FlashAttention-2, algorithm 2 line 15)";
  let description = [{
    `sums` is dq: a is the transposed tile of dS (rows k, columns q), b the tile of k. The sums are zero before the
    kernel runs. With `centred` the row sums of a^T are kept beside them, for `load_sums` to take b relative to its mean.
  }];
  let arguments = (ins F32Tile:$a, TileType:$b, StrAttr:$sums, Position:$batch, Position:$head, Position:$row,
                       UnitAttr:$centred);
  let assemblyFormat = [{
    $a `,` $b `,` $sums `[` $batch `,` $head `,` $row `]` (`centred` $centred^)? attr-dict
    `:` type($a) `,` type($b) `,` type($batch)
  }];
  let hasVerifier = 1;
}

def LoadSumsOp : TwOp<"load_sums", [Pure, AllTypesMatch<["batch", "head", "row"]>]> {
  let summary = "The finished sums of rows row.. of one head, of a tensor of type `stored`";
  let description = [{
    With `centred`: less rowsum(a^T) times a sampled mean of b's rows. Exact arithmetic has rowsum(dS) = 0 and nothing to
    take out; rounding of dS leaves something, which a common offset of the keys would multiply. Samples are taken
    inside `bounds` (as foreach_tile's) of the tile's rows, where `mask` shows them to its last row: hidden rows of b may
    hold anything.
  }];
  let arguments = (ins StrAttr:$sums, Position:$batch, Position:$head, Position:$row, TypeAttr:$stored,
                       UnitAttr:$centred, OptionalAttr<FlatSymbolRefAttr>:$bounds,
                       OptionalAttr<FlatSymbolRefAttr>:$mask);
  let results = (outs F32Tile:$tile);
  let assemblyFormat = [{
    $sums `[` $batch `,` $head `,` $row `]` `of` $stored (`centred` $centred^)? (`bounds` $bounds^)? (`mask` $mask^)?
    attr-dict `:` type($batch) `->` type($tile)
  }];
}

def FillOp : TwOp<"fill", [Pure]> {
  let summary = "A tile of one value";
  let arguments = (ins F32Attr:$value);
  let results = (outs F32Tile:$tile);
  let assemblyFormat = "$value attr-dict `:` type($tile)";
}

def DotOp : TwOp<"dot", [Pure]> {
  let summary = "a b, or a b^T, plus acc when given; accumulated in f32";
  let arguments = (ins TileType:$a, TileType:$b, Optional<F32Tile>:$acc, UnitAttr:$transpose_b);
  let results = (outs F32Tile:$result);
  let assemblyFormat = [{
    $a `,` $b (`transposed` $transpose_b^)? (`acc` $acc^ `:` type($acc))? attr-dict
    `:` type($a) `,` type($b) `->` type($result)
  }];
  let hasVerifier = 1;
}

// Ops below work on a tile of scores. Its rows are q and its columns k; with `transposed`, rows are k and columns q
// (then row vectors are 1 x C). `q_row`, `k_row` are the first positions.

def ScoreOp : TwOp<"score", [Pure, AllTypesMatch<["s", "result"]>, AllTypesMatch<["q_row", "k_row", "head", "batch"]>]> {
  let summary = "score(scale * s): the scaled product, through the score function `fn` when there is one";
  let arguments = (ins F32Tile:$s, Position:$q_row, Position:$k_row, Position:$head, Position:$batch,
                       OptionalAttr<FlatSymbolRefAttr>:$fn, UnitAttr:$transposed);
  let results = (outs F32Tile:$result);
  let assemblyFormat = [{
    $s `at` $q_row `,` $k_row `head` $head `batch` $batch (`fn` $fn^)? (`transposed` $transposed^)? attr-dict
    `:` type($s) `,` type($q_row)
  }];
}

def MaskOp : TwOp<"mask", [Pure, AllTypesMatch<["s", "result"]>, AllTypesMatch<["q_row", "k_row", "head", "batch"]>]> {
  let summary = "-inf where `fn` hides k from q and past either sequence's end; s itself when `partial` is false";
  let arguments = (ins F32Tile:$s, I1:$partial, Position:$q_row, Position:$k_row, Position:$head, Position:$batch,
                       OptionalAttr<FlatSymbolRefAttr>:$fn, UnitAttr:$transposed);
  let results = (outs F32Tile:$result);
  let assemblyFormat = [{
    $s `if` $partial `at` $q_row `,` $k_row `head` $head `batch` $batch (`fn` $fn^)? (`transposed` $transposed^)?
    attr-dict `:` type($s) `,` type($q_row)
  }];
}

def SoftmaxUpdateOp : TwOp<"softmax_update", [Pure, AllTypesMatch<["m", "l", "m_next", "l_next"]>,
    AllTypesMatch<["o", "o_next"]>, AllTypesMatch<["s", "p"]>]> {
  let summary = "Online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1 lines 9-10)";
  let description = [{
    m' = max(m, rowmax s), p = exp(s - m'), l' = exp(m - m') l + rowsum p, o' = exp(m - m') o. A row that has seen
    nothing has m = -inf and keeps p = 0.
  }];
  let arguments = (ins F32Tile:$m, F32Tile:$l, F32Tile:$o, F32Tile:$s);
  let results = (outs F32Tile:$m_next, F32Tile:$l_next, F32Tile:$o_next, F32Tile:$p);
  let assemblyFormat = "$m `,` $l `,` $o `,` $s attr-dict `:` type($m) `,` type($o) `,` type($s)";
}

def SoftmaxFinishOp : TwOp<"softmax_finish", [Pure, AllTypesMatch<["m", "l", "lse", "rest"]>,
    AllTypesMatch<["o", "o_result"]>]> {
  let summary = "o / l, lse = m + ln l in f32, and what that rounding left out; 0, -inf and 0 for a row that has seen nothing";
  let description = [{
    lse + rest = m + ln l. An f32 lse near 3e38 has no room for ln l at all, and one near 1e4 loses a thousandth:
    probabilities that are rebuilt from it need the rest.
  }];
  let arguments = (ins F32Tile:$m, F32Tile:$l, F32Tile:$o);
  let results = (outs F32Tile:$o_result, F32Tile:$lse, F32Tile:$rest);
  let assemblyFormat = "$m `,` $l `,` $o attr-dict `:` type($m) `,` type($o)";
}

def ProbabilityOp : TwOp<"probability", [Pure, AllTypesMatch<["s", "p"]>, AllTypesMatch<["lse", "rest"]>]> {
  let summary = "exp(s - lse - rest), at most 1; 0 where s is -inf or the row has seen nothing";
  let arguments = (ins F32Tile:$s, F32Tile:$lse, F32Tile:$rest, UnitAttr:$transposed);
  let results = (outs F32Tile:$p);
  let assemblyFormat = "$s `,` $lse `,` $rest (`transposed` $transposed^)? attr-dict `:` type($s) `,` type($lse)";
}

def SoftmaxGradientOp : TwOp<"softmax_gradient", [Pure, AllTypesMatch<["p", "dp", "ds"]>]> {
  let summary = "p (dp - delta): gradient of the scores (FlashAttention-2, algorithm 2 line 14)";
  let arguments = (ins F32Tile:$p, F32Tile:$dp, F32Tile:$delta, UnitAttr:$transposed);
  let results = (outs F32Tile:$ds);
  let assemblyFormat = "$p `,` $dp `,` $delta (`transposed` $transposed^)? attr-dict `:` type($p) `,` type($delta)";
}

def ScoreGradientOp : TwOp<"score_gradient", [Pure, AllTypesMatch<["ds", "s", "result"]>,
    AllTypesMatch<["q_row", "k_row", "head", "batch"]>]> {
  let summary = "ds times d score / d s at the unscored product s; 0 where ds is 0";
  let arguments = (ins F32Tile:$ds, F32Tile:$s, Position:$q_row, Position:$k_row, Position:$head, Position:$batch,
                       FlatSymbolRefAttr:$fn, UnitAttr:$transposed);
  let results = (outs F32Tile:$result);
  let assemblyFormat = [{
    $ds `,` $s `at` $q_row `,` $k_row `head` $head `batch` $batch `fn` $fn (`transposed` $transposed^)? attr-dict
    `:` type($ds) `,` type($q_row)
  }];
}

def ScaleOp : TwOp<"scale", [Pure, AllTypesMatch<["x", "result"]>]> {
  let summary = "x times the problem's scale";
  let arguments = (ins F32Tile:$x);
  let results = (outs F32Tile:$result);
  let assemblyFormat = "$x attr-dict `:` type($x)";
}

def RowDotOp : TwOp<"row_dot", [Pure]> {
  let summary = "rowsum(a * b)";
  let arguments = (ins TileType:$a, TileType:$b);
  let results = (outs F32Tile:$result);
  let assemblyFormat = "$a `,` $b attr-dict `:` type($a) `,` type($b) `->` type($result)";
}

def ForeachTileOp : TwOp<"foreach_tile", [AttrSizedOperandSegments, AllTypesMatch<["own_row", "head", "batch"]>]> {
  let summary = "Visits the tiles along `axis` (kv or q) that the mask leaves something of";
  let description = [{
    Body: ^bb(row, partial, carried...). `row` is the visited tile's first position; `partial` is true unless every
    pair of the two tiles is visible and inside both sequences. Ascending order. `bounds` names the function
    (first, last of the owned rows; sq, sk, h, b) -> (touched begin, touched end, full begin, full end) in positions;
    `classes` the function (q first, q last, k first, k last, sq, sk, h, b) -> (possible, certain). With `interval`
    the bounds alone decide, which a lowering may turn into plain loops. With `part` only the part-th of `parts` runs
    of consecutive tiles between the bounds is visited: of n tiles those from n part / parts to n (part + 1) / parts.
  }];
  let arguments = (ins StrAttr:$axis, Position:$own_row, Position:$head, Position:$batch, Optional<Position>:$part,
                       Variadic<AnyType>:$inits, I64Attr:$own_rows, I64Attr:$walk_rows, FlatSymbolRefAttr:$bounds,
                       OptionalAttr<FlatSymbolRefAttr>:$classes, UnitAttr:$interval,
                       DefaultValuedAttr<I64Attr, "1">:$parts);
  let results = (outs Variadic<AnyType>:$results);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    $axis `of` $own_row `head` $head `batch` $batch `:` type($own_row) (`part` $part^ `:` type($part))? `init` `(` $inits `)` `:`
    functional-type($inits, $results) attr-dict-with-keyword $body
  }];
  let hasRegionVerifier = 1;
}

#endif
