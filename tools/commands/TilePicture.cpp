#include "TilePicture.h"

#include <algorithm>
#include <fmt/format.h>

namespace tilewright::tool {
namespace {

/// Glyph of a cell that stands for several tiles: full only if all are, skipped only if all are.
const char *glyph(const TileMap &map, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
  bool anyFull = false, anyPartial = false, anyEmpty = false;
  for (int64_t i = i0; i < i1; ++i)
    for (int64_t j = j0; j < j1; ++j) {
      TileClass kind = map.at(i, j);
      anyFull |= kind == TileClass::Full;
      anyPartial |= kind == TileClass::Partial;
      anyEmpty |= kind == TileClass::Empty;
    }
  if (!anyFull && !anyPartial) return "\u00b7";
  return anyPartial || anyEmpty ? "\u2592" : "\u2588";
}

} // namespace

std::string drawTiles(const TileMap &map, int64_t maxSide) {
  if (map.rows() == 0 || map.cols() == 0) return "  (no tiles)\n";
  int64_t step = (std::max(map.rows(), map.cols()) + maxSide - 1) / maxSide;
  std::string text;
  for (int64_t i = 0; i < map.rows(); i += step) {
    text += "  ";
    for (int64_t j = 0; j < map.cols(); j += step) {
      // A terminal's cell is about twice as high as wide.
      const char *cell = glyph(map, i, std::min(i + step, map.rows()), j, std::min(j + step, map.cols()));
      text += cell;
      text += cell;
    }
    text += "\n";
  }
  text += "  rows: q tiles, columns: kv tiles; \u2588 full, \u2592 partial, \u00b7 skipped";
  return text + (step > 1 ? fmt::format("; a cell stands for {0} x {0} tiles\n", step) : "\n");
}

} // namespace tilewright::tool
