// A bar chart as inline SVG.
#pragma once

#include <string>
#include <vector>

namespace tilewright::bench {

struct Bar {
  size_t series = 0;      ///< Index into BarChart::series.
  double value = 0;       ///< Bars without a value are left out by the caller.
  bool estimated = false; ///< Drawn as an outline.
};

struct BarGroup {
  std::string label;   ///< Below the group: "4096".
  std::string verdict; ///< Above the group: "1.07x"; may be empty.
  bool ahead = false;  ///< How the verdict is coloured.
  std::vector<Bar> bars;
};

struct BarChart {
  std::string title, unit;         ///< "d128, causal", "TFLOP/s"
  std::string axis;                ///< What the groups' labels are: "sequence length".
  bool wide = false;               ///< As wide as a page, for groups with long labels.
  std::vector<std::string> series; ///< Names, for tooltips; series i has the CSS class s<i>.
  std::vector<BarGroup> groups;
};

/// Bars stand beside each other in each group, from 0. Colours come from the page's style, so they follow its theme.
std::string toSvg(const BarChart &chart);

/// Text with the characters escaped that HTML gives a meaning.
std::string escapeHtml(std::string_view text);

} // namespace tilewright::bench
