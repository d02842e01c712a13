#include "Chart.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>

namespace tilewright::bench {
namespace {

constexpr double kHeight = 270, kLeft = 46, kRight = 8, kTop = 26, kBottom = 42;
constexpr double kPlotHeight = kHeight - kTop - kBottom;

/// Distance of grid lines: 1, 2 or 5 times a power of ten, four to eight lines for values up to `top`.
double gridStep(double top) {
  const double raw = top / 5, power = std::pow(10, std::floor(std::log10(raw)));
  for (double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

} // namespace

std::string escapeHtml(std::string_view text) {
  std::string escaped;
  for (char c : text)
    switch (c) {
    case '&':
      escaped += "&amp;";
      break;
    case '<':
      escaped += "&lt;";
      break;
    case '>':
      escaped += "&gt;";
      break;
    case '"':
      escaped += "&quot;";
      break;
    case '\'':
      escaped += "&#39;";
      break;
    default:
      escaped += c;
    }
  return escaped;
}

std::string toSvg(const BarChart &chart) {
  const double width = chart.wide ? 1260 : 620, plotWidth = width - kLeft - kRight;
  double largest = 0;
  size_t widest = 1;
  for (const BarGroup &group : chart.groups) {
    widest = std::max(widest, group.bars.size());
    for (const Bar &bar : group.bars)
      largest = std::max(largest, bar.value);
  }
  const double step = gridStep(largest > 0 ? largest : 1), top = std::ceil(std::max(largest, step) / step) * step;
  auto y = [&](double value) { return kTop + kPlotHeight * (1 - value / top); };

  std::string svg;
  auto out = std::back_inserter(svg);
  fmt::format_to(out, "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", width, kHeight,
                 escapeHtml(chart.title));
  for (double value = 0; value <= top * 1.0001; value += step)
    fmt::format_to(out,
                   "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
                   "<text class=\"tick\" x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
                   kLeft, width - kRight, y(value), kLeft - 6, y(value) + 4, value);
  const double slot = plotWidth / static_cast<double>(std::max<size_t>(chart.groups.size(), 1));
  // One group alone would get bars as wide as the page.
  const double barWidth = std::min(slot * 0.82 / static_cast<double>(widest), 30.0);
  for (size_t g = 0; g < chart.groups.size(); ++g) {
    const BarGroup &group = chart.groups[g];
    const double middle = kLeft + slot * (static_cast<double>(g) + 0.5);
    double x = middle - barWidth * static_cast<double>(group.bars.size()) / 2, highest = 0;
    for (const Bar &bar : group.bars) {
      highest = std::max(highest, bar.value);
      fmt::format_to(
          out,
          "<rect class=\"s{}{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>{}, {}: "
          "{:.1f} {}</title></rect>\n",
          bar.series, bar.estimated ? " estimated" : "", x + 0.75, y(bar.value), barWidth - 1.5,
          kTop + kPlotHeight - y(bar.value), escapeHtml(chart.series[bar.series]), escapeHtml(group.label), bar.value,
          escapeHtml(chart.unit));
      x += barWidth;
    }
    fmt::format_to(out, "<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", middle,
                   kTop + kPlotHeight + 16, escapeHtml(group.label));
    if (!group.verdict.empty())
      fmt::format_to(out, "<text class=\"verdict {}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                     group.ahead ? "ahead" : "behind", middle, y(highest) - 6, escapeHtml(group.verdict));
  }
  fmt::format_to(out,
                 "<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>"
                 "<text class=\"tick\" x=\"4\" y=\"12\">{}</text>\n</svg>\n",
                 kLeft + plotWidth / 2, kHeight - 8, escapeHtml(chart.axis), escapeHtml(chart.unit));
  return svg;
}

} // namespace tilewright::bench
