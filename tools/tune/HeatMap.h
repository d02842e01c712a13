// A heat map as inline SVG: how fast the best candidate of each pair of tile sizes is.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tilewright::tune {

struct HeatCell {
  std::optional<double> slowdown; ///< Over the fastest candidate of the map: 1 is the fastest. Null: none was timed.
  std::string mark;               ///< Where none was timed: what became of those there were; one or two characters.
  std::string text;               ///< Tooltip.
  bool isDefault = false, isWinner = false;
};

struct HeatMap {
  std::string title, xTitle, yTitle;
  std::vector<int> xs, ys;
  std::vector<HeatCell> cells; ///< Row by row: cells[y * xs.size() + x].
};

/// Colours go from the fastest (class heat0) to twice its time and above (heat9); the page's style gives them.
std::string toSvg(const HeatMap &map);

} // namespace tilewright::tune
