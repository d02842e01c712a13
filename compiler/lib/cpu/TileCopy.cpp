#include "TileCopy.h"

#include "NumberFormat.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using arith::CmpFPredicate;
using arith::CmpIPredicate;

namespace tilewright::cpu {

namespace {

/// First column of vector number `i` of a row of `cols` >= e.lanes columns. The last vector ends with the row and may
/// overlap the one before: it repeats a few columns instead of leaving the row.
int64_t firstColumn(const Emitter &e, int64_t cols, int64_t i) { return std::min(i * e.lanes, cols - e.lanes); }

int64_t vectorsOf(const Emitter &e, int64_t cols) { return llvm::divideCeil(cols, e.lanes); }

/// The same, for a vector number known only at run time.
Value firstColumn(Emitter &e, int64_t cols, Value i) {
  Value column = e.mul(i, e.constant(e.lanes));
  return cols % e.lanes == 0 ? column : e.minSigned(column, e.constant(cols - e.lanes));
}

/// Transposes lanes x lanes values held as `lanes` vectors, exchanging ever larger blocks between pairs of vectors.
void transposeSquare(Emitter &e, SmallVectorImpl<Value> &rows) {
  int64_t n = e.lanes;
  for (int64_t block = 1; block < n; block *= 2) {
    SmallVector<int64_t, 16> low, high;
    for (int64_t lane = 0; lane < n; ++lane) { // indices from n on mean the second vector
      low.push_back(lane & block ? n + lane - block : lane);
      high.push_back(lane & block ? n + lane : lane + block);
    }
    for (int64_t i = 0; i < n; ++i) {
      if (i & block) continue;
      Value a = rows[i], b = rows[i + block];
      rows[i] = vector::ShuffleOp::create(e, a, b, low);
      rows[i + block] = vector::ShuffleOp::create(e, a, b, high);
    }
  }
}

/// Rows [row, row + tile.rows) that exist: between 0 and tile.rows.
Value existingRows(Emitter &e, const TileSource &source, int64_t rows) {
  Value left = e.maxSigned(e.sub(source.length, source.row), e.constant(0));
  return e.minSigned(left, e.constant(rows));
}

Value laneNumbers(Emitter &e) {
  SmallVector<int32_t, 16> numbers = llvm::to_vector<16>(llvm::seq<int32_t>(0, e.lanes));
  return arith::ConstantOp::create(e, DenseElementsAttr::get(e.vectorOf(e.i32), ArrayRef<int32_t>(numbers)));
}

/// Condition that lane i is below `count` (i64, at most 2^31).
Value lanesBelow(Emitter &e, Value count) {
  Value narrow = e.broadcast(e.toPosition(e.i32, count));
  return e.compare(CmpIPredicate::slt, laneNumbers(e), narrow);
}

/// The address of (row, column) of the source.
Value elementAddress(Emitter &e, const TileSource &source, Value row, Value column) {
  Value start = e.advance(source.head.base, e.mul(row, source.head.rowBytes));
  return e.advance(start, e.mul(column, e.constant(bytesOf(source.stored))));
}

void loadRows(Emitter &e, const TileSource &source, TileBuffer &tile, bool noteFinite) {
  int64_t cols = tile.cols, elementBytes = bytesOf(source.stored);
  bool scalar = cols < e.lanes; // narrower than a vector: element by element
  int64_t pieces = scalar ? cols : vectorsOf(e, cols);
  Type shape = scalar ? e.f32 : Type(e.vectorOf(e.f32));
  Value zero = e.number(shape, 0.0);
  Value existing = existingRows(e, source, tile.rows);

  // x * 0 is NaN exactly where x is not finite, and NaN survives every sum.
  Emitter::Carried init;
  if (noteFinite) init.push_back(zero);
  auto copyRow = [&](Value r, ValueRange carried) -> Emitter::Carried {
    Value from = e.advance(source.head.base, e.mul(e.add(source.row, r), source.head.rowBytes));
    Value to = e.advance(tile.base, e.mul(r, e.constant(cols * 4)));
    Emitter::Carried next(carried);
    for (int64_t i = 0; i < pieces; ++i) {
      int64_t column = scalar ? i : firstColumn(e, cols, i);
      Value x = emitLoadAsF32(e, source.stored, e.advance(from, column * elementBytes), scalar);
      e.store(x, e.advance(to, column * 4), 4);
      if (noteFinite) next[0] = e.fma(x, zero, next[0]);
    }
    return next;
  };
  Emitter::Carried sums = e.loop(e.constant(0), existing, 1, init, copyRow);
  if (noteFinite) {
    Value notFinite = e.compare(CmpFPredicate::UNO, sums[0], sums[0]);
    if (!scalar) notFinite = e.anyLane(notFinite);
    tile.finite = arith::XOrIOp::create(e, notFinite, e.constant(e.i1, 1));
  }
  e.loop(existing, e.constant(tile.rows), 1, [&](Value r) {
    Value to = e.advance(tile.base, e.mul(r, e.constant(cols * 4)));
    for (int64_t i = 0; i < pieces; ++i)
      e.store(zero, e.advance(to, (scalar ? i : firstColumn(e, cols, i)) * 4), 4);
  });
}

/// One f32 per row. The panel layout of a single column is the plain order.
void loadRowVector(Emitter &e, const TileSource &source, const TileBuffer &tile) {
  int64_t count = tile.rows * tile.cols;
  e.loop(0, count, e.lanes, [&](Value first) {
    Value position = e.add(source.row, first);
    Value left = e.maxSigned(e.sub(source.length, position), e.constant(0));
    Value exists = lanesBelow(e, e.minSigned(left, e.constant(e.lanes)));
    Value x = e.maskedLoad(e.f32, e.advance(source.head.base, e.mul(position, e.constant(4))), exists, 4);
    e.store(x, e.advance(tile.base, e.mul(first, e.constant(4))), 4 * e.lanes);
  });
}

/// One vector's width of rows of a tile in panel layout: where its columns lie.
struct RowStrip {
  Value base;          ///< Address of column 0
  int64_t columnBytes; ///< From one column to the next
  Value firstRow;      ///< Of the tile (i64)

  Value address(Emitter &e, Value column) const { return e.advance(base, e.mul(column, e.constant(columnBytes))); }
};

/// Runs `body` for each strip of a tile, in a loop: transposing code is long, so there is one copy of it.
void forEachStrip(Emitter &e, const TileBuffer &tile, function_ref<void(const RowStrip &)> body) {
  int64_t vectors = panelVectors(e, tile.rows), vectorBytes = e.lanes * 4;
  e.loop(0, tile.rows / e.lanes, 1, [&](Value strip) {
    Value count = e.constant(vectors);
    Value panel = arith::DivSIOp::create(e, strip, count), vector = arith::RemSIOp::create(e, strip, count);
    Value offset = e.add(e.mul(panel, e.constant(tile.cols * vectors * vectorBytes)),
                         e.mul(vector, e.constant(vectorBytes)));
    body({e.advance(tile.base, offset), vectors * vectorBytes, e.mul(strip, e.constant(e.lanes))});
  });
}

void loadPanels(Emitter &e, const TileSource &source, const TileBuffer &tile) {
  Value last = e.sub(source.length, e.constant(1));
  forEachStrip(e, tile, [&](const RowStrip &strip) {
    Value row = e.add(source.row, strip.firstRow);
    if (tile.cols < e.lanes) {
      e.loop(0, tile.cols, 1, [&](Value column) {
        e.loop(0, e.lanes, 1, [&](Value lane) {
          Value r = e.add(row, lane);
          Value x = emitLoadAsF32(e, source.stored, elementAddress(e, source, e.minSigned(r, last), column), true);
          x = e.select(e.compare(CmpIPredicate::sle, r, last), x, e.number(e.f32, 0.0));
          e.store(x, e.advance(strip.address(e, column), e.mul(lane, e.constant(4))), 4);
        });
      });
      return;
    }
    e.loop(0, vectorsOf(e, tile.cols), 1, [&](Value i) {
      Value column = firstColumn(e, tile.cols, i);
      SmallVector<Value, 16> square;
      for (int64_t lane = 0; lane < e.lanes; ++lane) {
        // Rows past the end are read from the last row, which exists, and replaced.
        Value r = e.add(row, e.constant(lane));
        Value x = emitLoadAsF32(e, source.stored, elementAddress(e, source, e.minSigned(r, last), column), false);
        square.push_back(e.select(e.compare(CmpIPredicate::sle, r, last), x, e.splat(0.0)));
      }
      transposeSquare(e, square);
      Value to = strip.address(e, column);
      for (int64_t lane = 0; lane < e.lanes; ++lane)
        e.store(square[lane], e.advance(to, lane * strip.columnBytes), 4 * e.lanes);
    });
  });
}

} // namespace

void emitLoadTile(Emitter &e, const TileSource &source, TileBuffer &tile, bool noteFinite) {
  if (source.rowVector) {
    loadRowVector(e, source, tile);
  } else if (tile.panels) {
    loadPanels(e, source, tile);
  } else {
    loadRows(e, source, tile, noteFinite);
  }
}

void emitStoreTile(Emitter &e, const TileBuffer &tile, const TileSource &destination) {
  forEachStrip(e, tile, [&](const RowStrip &strip) {
    Value row = e.add(destination.row, strip.firstRow);
    Value existing = e.minSigned(e.maxSigned(e.sub(destination.length, row), e.constant(0)), e.constant(e.lanes));
    if (tile.cols < e.lanes) {
      e.loop(0, tile.cols, 1, [&](Value column) {
        e.loop(e.constant(0), existing, 1, [&](Value lane) {
          Value x = e.load(e.f32, e.advance(strip.address(e, column), e.mul(lane, e.constant(4))), 4);
          emitStoreFromF32(e, destination.stored, x, elementAddress(e, destination, e.add(row, lane), column));
        });
      });
      return;
    }
    e.loop(0, vectorsOf(e, tile.cols), 1, [&](Value i) {
      Value column = firstColumn(e, tile.cols, i), from = strip.address(e, column);
      SmallVector<Value, 16> square;
      for (int64_t lane = 0; lane < e.lanes; ++lane)
        square.push_back(e.load(e.vectorOf(e.f32), e.advance(from, lane * strip.columnBytes), 4 * e.lanes));
      transposeSquare(e, square);
      for (int64_t lane = 0; lane < e.lanes; ++lane)
        e.branch(e.compare(CmpIPredicate::slt, e.constant(lane), existing), [&] {
          Value r = e.add(row, e.constant(lane));
          emitStoreFromF32(e, destination.stored, square[lane], elementAddress(e, destination, r, column));
        });
    });
  });
}

} // namespace tilewright::cpu
