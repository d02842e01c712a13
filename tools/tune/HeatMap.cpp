#include "HeatMap.h"
#include "../bench/Chart.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>

namespace tilewright::tune {
namespace {

constexpr int kCellWidth = 62, kCellHeight = 34, kLeft = 64, kTop = 10, kBottom = 44, kRight = 10;

/// 0 for the fastest, 9 from twice its time on; small differences, which decide, get most of the colours.
int shadeOf(double slowdown) { return std::clamp(static_cast<int>(std::sqrt(std::max(0.0, slowdown - 1)) * 9), 0, 9); }

} // namespace

std::string toSvg(const HeatMap &map) {
  using bench::escapeHtml;
  const int width = kLeft + kCellWidth * static_cast<int>(map.xs.size()) + kRight;
  const int height = kTop + kCellHeight * static_cast<int>(map.ys.size()) + kBottom;
  std::string svg;
  auto out = std::back_inserter(svg);
  fmt::format_to(out, "<svg viewBox=\"0 0 {} {}\" style=\"max-width:{}px\" role=\"img\" aria-label=\"{}\">\n", width,
                 height, width, escapeHtml(map.title));
  for (size_t y = 0; y < map.ys.size(); ++y) {
    const int top = kTop + kCellHeight * static_cast<int>(y);
    fmt::format_to(out, "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 8,
                   top + kCellHeight / 2 + 4, map.ys[y]);
    for (size_t x = 0; x < map.xs.size(); ++x) {
      const HeatCell &cell = map.cells[y * map.xs.size() + x];
      const int left = kLeft + kCellWidth * static_cast<int>(x);
      const int shade = cell.slowdown ? shadeOf(*cell.slowdown) : -1;
      fmt::format_to(out, "<g><title>{}</title><rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                     escapeHtml(cell.text), shade < 0 ? "heatnone" : fmt::format("heat heat{}", shade), left + 1,
                     top + 1, kCellWidth - 2, kCellHeight - 2);
      if (cell.isWinner || cell.isDefault)
        fmt::format_to(out, "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                       cell.isWinner ? "winnerframe" : "defaultframe", left + 2, top + 2, kCellWidth - 4,
                       kCellHeight - 4);
      fmt::format_to(out, "<text class=\"{}\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text></g>\n",
                     shade < 0                 ? "tick"
                     : shade < 2 || shade >= 8 ? "bright"
                                               : "dim",
                     left + kCellWidth / 2, top + kCellHeight / 2 + 4,
                     cell.slowdown ? fmt::format("{:.2f}", *cell.slowdown) : escapeHtml(cell.mark));
    }
  }
  const int below = kTop + kCellHeight * static_cast<int>(map.ys.size());
  for (size_t x = 0; x < map.xs.size(); ++x)
    fmt::format_to(out, "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                   kLeft + kCellWidth * static_cast<int>(x) + kCellWidth / 2, below + 16, map.xs[x]);
  fmt::format_to(out,
                 "<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>"
                 "<text class=\"label\" transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n"
                 "</svg>\n",
                 kLeft + kCellWidth * static_cast<int>(map.xs.size()) / 2, below + 36, escapeHtml(map.xTitle),
                 kTop + kCellHeight * static_cast<int>(map.ys.size()) / 2, escapeHtml(map.yTitle));
  return svg;
}

} // namespace tilewright::tune
