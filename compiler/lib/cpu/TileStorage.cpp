#include "TileStorage.h"

using namespace mlir;

namespace tilewright::cpu {

TileBuffer TileStorage::allocate(tw::TileType type, bool panels) {
  OpBuilder::InsertionGuard guard(e);
  e.setInsertionPoint(anchor);
  TileBuffer buffer;
  buffer.rows = type.getRows();
  buffer.cols = type.getCols();
  buffer.panels = panels;
  buffer.base = e.advance(scratch, used);
  // Another odd line between tiles keeps equal rows of different tiles in different cache sets.
  used += (type.getRows() * type.getCols() * 4 + 63) / 64 * 64 + 64;
  return buffer;
}

int64_t panelVectors(const Emitter &e, int64_t rows) {
  for (int64_t vectors : {4, 3, 5, 2}) {
    if (vectors > 2 && e.lanes < 16) continue; // 16 registers are too few
    if (rows % (vectors * e.lanes) == 0) return vectors;
  }
  return 1;
}

PanelColumns::PanelColumns(Emitter &e, const TileBuffer &tile, Value panel) : e(e), count(panelVectors(e, tile.rows)) {
  int64_t panelBytes = tile.cols * count * e.lanes * 4;
  base = e.advance(tile.base, e.mul(panel, e.constant(panelBytes)));
}

Value PanelColumns::address(Value column, int64_t vector) const {
  Value start = e.advance(base, e.mul(column, e.constant(count * e.lanes * 4)));
  return e.advance(start, vector * e.lanes * 4);
}

Value PanelColumns::load(Value column, int64_t vector) const {
  return e.load(e.vectorOf(e.f32), address(column, vector), 4 * e.lanes);
}

void PanelColumns::store(Value value, Value column, int64_t vector) const {
  e.store(value, address(column, vector), 4 * e.lanes);
}

void forEachPanel(Emitter &e, int64_t rows, function_ref<void(Value)> body) {
  e.loop(0, rows / (panelVectors(e, rows) * e.lanes), 1, body);
}

} // namespace tilewright::cpu
