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

/// Rows and columns that are transposed at a time: four vectors of four are eight shuffles, short enough to be written
/// out wherever a tile is loaded or stored. It happens once for each owned tile, so more would gain nothing.
constexpr int64_t kSquare = 4;

/// First column of square number `i`; the last one ends with the row, as above.
Value squareColumn(Emitter &e, int64_t cols, Value i) {
  Value column = e.mul(i, e.constant(kSquare));
  return cols % kSquare == 0 ? column : e.minSigned(column, e.constant(cols - kSquare));
}

/// Transposes a square, exchanging first single elements and then pairs between two vectors.
void transposeSquare(Emitter &e, SmallVectorImpl<Value> &rows) {
  for (int64_t block = 1; block < kSquare; block *= 2) {
    SmallVector<int64_t, kSquare> low, high;
    for (int64_t lane = 0; lane < kSquare; ++lane) { // indices from kSquare on mean the second vector
      low.push_back(lane & block ? kSquare + lane - block : lane);
      high.push_back(lane & block ? kSquare + lane : lane + block);
    }
    for (int64_t i = 0; i < kSquare; ++i) {
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
      Value x = emitLoadAsF32(e, source.stored, e.advance(from, column * elementBytes), scalar ? 1 : e.lanes);
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

/// Address of element (row, column) of a tile in panel layout. Rows from `row` up to the next multiple of kSquare
/// follow in memory, columns lie columnBytes apart.
Value panelAddress(Emitter &e, const TileBuffer &tile, Value row, Value column) {
  int64_t panelRows = panelVectors(e, tile.rows) * e.lanes;
  Value height = e.constant(panelRows);
  Value panel = arith::DivSIOp::create(e, row, height), inside = arith::RemSIOp::create(e, row, height);
  Value index = e.add(e.mul(e.add(e.mul(panel, e.constant(tile.cols)), column), height), inside);
  return e.advance(tile.base, e.mul(index, e.constant(4)));
}

int64_t panelColumnBytes(const Emitter &e, const TileBuffer &tile) { return panelVectors(e, tile.rows) * e.lanes * 4; }

void loadPanels(Emitter &e, const TileSource &source, const TileBuffer &tile) {
  // Rows past the end are read from the last row, which exists, and replaced by zero.
  Value last = e.sub(source.length, e.constant(1));
  auto loadOrZero = [&](Value row, Value column, int64_t count) {
    Value x = emitLoadAsF32(e, source.stored, elementAddress(e, source, e.minSigned(row, last), column), count);
    return e.select(e.compare(CmpIPredicate::sle, row, last), x, e.number(x.getType(), 0.0));
  };
  if (tile.cols < kSquare) {
    e.loop(0, tile.rows, 1, [&](Value r) {
      for (int64_t c = 0; c < tile.cols; ++c) {
        Value column = e.constant(c);
        e.store(loadOrZero(e.add(source.row, r), column, 1), panelAddress(e, tile, r, column), 4);
      }
    });
    return;
  }
  e.loop(0, tile.rows, kSquare, [&](Value r) {
    Value row = e.add(source.row, r);
    e.loop(0, llvm::divideCeil(tile.cols, kSquare), 1, [&](Value i) {
      Value column = squareColumn(e, tile.cols, i), to = panelAddress(e, tile, r, column);
      SmallVector<Value, kSquare> square;
      for (int64_t j = 0; j < kSquare; ++j)
        square.push_back(loadOrZero(e.add(row, e.constant(j)), column, kSquare));
      transposeSquare(e, square);
      for (int64_t j = 0; j < kSquare; ++j)
        e.store(square[j], e.advance(to, j * panelColumnBytes(e, tile)), 16);
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
  Value existing = existingRows(e, destination, tile.rows);
  if (tile.cols < kSquare) {
    e.loop(e.constant(0), existing, 1, [&](Value r) {
      for (int64_t c = 0; c < tile.cols; ++c) {
        Value column = e.constant(c), x = e.load(e.f32, panelAddress(e, tile, r, column), 4);
        emitStoreFromF32(e, destination.stored, x, elementAddress(e, destination, e.add(destination.row, r), column));
      }
    });
    return;
  }
  e.loop(e.constant(0), existing, kSquare, [&](Value r) {
    e.loop(0, llvm::divideCeil(tile.cols, kSquare), 1, [&](Value i) {
      Value column = squareColumn(e, tile.cols, i), from = panelAddress(e, tile, r, column);
      SmallVector<Value, kSquare> square;
      for (int64_t j = 0; j < kSquare; ++j)
        square.push_back(e.load(VectorType::get({kSquare}, e.f32), e.advance(from, j * panelColumnBytes(e, tile)), 16));
      transposeSquare(e, square);
      for (int64_t j = 0; j < kSquare; ++j) {
        Value row = e.add(r, e.constant(j));
        e.branch(e.compare(CmpIPredicate::slt, row, existing), [&] {
          Value at = elementAddress(e, destination, e.add(destination.row, row), column);
          emitStoreFromF32(e, destination.stored, square[j], at);
        });
      }
    });
  });
}

} // namespace tilewright::cpu
