// A picture of a mask's tiles for the terminal.
#pragma once

#include "tilewright/problem/TileMap.h"
#include <string>

namespace tilewright::tool {

/// One cell a tile, or a square of tiles where there are too many: full, partial and skipped ones have three shades.
/// Rows are q tiles, columns kv tiles. At most `maxSide` cells a side.
std::string drawTiles(const TileMap &map, int64_t maxSide = 48);

} // namespace tilewright::tool
