// The result as a self-contained HTML page.
#include "BenchResult.h"
#include "Chart.h"
#include "Embedded.h"
#include "MeasuredRatios.h"
#include <algorithm>
#include <fmt/format.h>
#include <iterator>

namespace tilewright::bench {
namespace {

std::vector<std::string> seriesNames(const BenchResult &result) {
  std::vector<std::string> names = {longName("tilewright")};
  for (const std::string &peer : result.peers)
    names.push_back(longName(peer));
  return names;
}

/// Cells that share a chart: one of the grid's (head dims, mask), or all decode cases, or a named case alone.
std::string chartKey(const CellResult &cell) {
  const BenchCase &c = cell.benchCase;
  if (c.rate == Rate::Bytes) return "decode, one query token";
  if (c.set == "table") return fmt::format("head dim {}, {}", c.dims(), c.mask == "none" ? "no mask" : c.mask);
  return "named cases";
}

std::vector<BarChart> chartsOf(const BenchResult &result) {
  std::vector<BarChart> charts;
  for (const CellResult &cell : result.cells) {
    const std::string title = chartKey(cell);
    auto chart = std::ranges::find(charts, title, &BarChart::title);
    if (chart == charts.end()) {
      const BenchCase &c = cell.benchCase;
      charts.push_back({title,
                        c.rate == Rate::Flops ? "TFLOP/s" : "GB/s of K and V",
                        c.set == "table" ? "sequence length" : "",
                        c.set != "table" && c.rate == Rate::Flops,
                        seriesNames(result),
                        {}});
      chart = charts.end() - 1;
    }
    BarGroup group;
    group.label = cell.benchCase.set == "table" ? cell.benchCase.lengths() : cell.benchCase.name;
    if (std::optional<double> ratio = cell.ratio()) {
      group.verdict = fmt::format("{:.2f}x", *ratio);
      group.ahead = *ratio >= 1;
    }
    if (cell.own.series) group.bars.push_back({0, cell.rate(cell.own), false});
    for (size_t i = 0; i < cell.peers.size(); ++i)
      if (cell.peers[i].series) group.bars.push_back({i + 1, cell.rate(cell.peers[i]), cell.peers[i].estimated});
    chart->groups.push_back(std::move(group));
  }
  return charts;
}

void addLegend(std::string &html, const BenchResult &result) {
  const std::vector<std::string> names = seriesNames(result);
  html += "<p class=\"legend\">";
  for (size_t i = 0; i < names.size(); ++i) {
    const bool estimated = i > 0 && result.peers[i - 1] == "fa3_estimate";
    fmt::format_to(std::back_inserter(html),
                   "<span><svg viewBox=\"0 0 12 12\"><rect class=\"s{}{}\" x=\"1\" y=\"1\" width=\"10\" "
                   "height=\"10\"/></svg>{}</span>",
                   i, estimated ? " estimated" : "", escapeHtml(names[i]));
  }
  html += "<span class=\"hint\">above each group: Tilewright over the fastest peer</span></p>\n";
}

void addSummary(std::string &html, const BenchResult &result) {
  const std::vector<RatioSummary> summaries = summarise(result);
  if (summaries.empty()) return;
  auto out = std::back_inserter(html);
  html += "<div class=\"cards\">";
  for (const RatioSummary &s : summaries)
    fmt::format_to(out,
                   "<div class=\"card\"><div class=\"cardhead\">{}</div><div class=\"figure {}\">{:.3f}x</div>"
                   "<div class=\"hint\">geometric mean of {} cells<br>worst {:.3f}x, {}</div></div>\n",
                   s.label == "all" ? "all cells of the table" : "head dim " + escapeHtml(s.label.substr(1)),
                   s.geometricMean >= 1 ? "ahead" : "behind", s.geometricMean, s.cells, s.worst,
                   escapeHtml(s.worstCell));
  html += "</div>\n";
}

std::string measured(const std::optional<double> &value) { return value ? fmt::format("{:.0f}", *value) : "&ndash;"; }

void addTable(std::string &html, const BenchResult &result) {
  auto out = std::back_inserter(html);
  html += "<h2>All figures</h2>\n<div class=\"scroll\"><table><thead><tr><th>case</th><th>ms</th><th>Tilewright</th>";
  for (const std::string &peer : result.peers)
    fmt::format_to(out, "<th>{}</th>", escapeHtml(displayName(peer)));
  html += "<th>ratio</th><th>SM MHz<br>(NVML / after)</th><th>W</th>";
  for (const std::string &peer : result.peers)
    if (peer != "fa3_estimate") fmt::format_to(out, "<th>{0}<br>MHz / W</th>", escapeHtml(displayName(peer)));
  html += "<th>schedule</th></tr></thead><tbody>\n";
  for (const CellResult &cell : result.cells) {
    const auto &own = cell.own.series;
    fmt::format_to(out, "<tr><td>{}</td>", escapeHtml(cell.benchCase.name));
    if (own)
      fmt::format_to(out, "<td>{:.4f}</td><td class=\"own\">{:.1f}</td>", own->ms, cell.rate(cell.own));
    else
      fmt::format_to(out, "<td title=\"{}\">failed</td><td>&ndash;</td>", escapeHtml(cell.own.why));
    for (const Contestant &peer : cell.peers)
      if (peer.series)
        fmt::format_to(out, "<td>{:.1f}</td>", cell.rate(peer));
      else
        fmt::format_to(out, "<td title=\"{}\">&ndash;</td>", escapeHtml(peer.why));
    const std::optional<double> ratio = cell.ratio();
    if (ratio)
      fmt::format_to(out, "<td class=\"{}\">{:.3f}x</td>", *ratio >= 1 ? "ahead" : "behind", *ratio);
    else
      html += "<td>&ndash;</td>";
    fmt::format_to(out, "<td>{} / {}</td><td>{}</td>", own ? measured(own->clockMhz) : "&ndash;",
                   own ? measured(own->clockAfterMhz) : "&ndash;", own ? measured(own->powerW) : "&ndash;");
    for (const Contestant &peer : cell.peers)
      if (peer.name != "fa3_estimate")
        fmt::format_to(out, "<td>{} / {}</td>", peer.series ? measured(peer.series->clockMhz) : "&ndash;",
                       peer.series ? measured(peer.series->powerW) : "&ndash;");
    fmt::format_to(out, "<td class=\"schedule\">{}</td></tr>\n", escapeHtml(cell.schedule));
  }
  html += "</tbody></table></div>\n";
}

void addErrors(std::string &html, const BenchResult &result) {
  auto out = std::back_inserter(html);
  bool head = false;
  for (const CellResult &cell : result.cells) {
    std::vector<std::pair<std::string, const Contestant *>> all = {{longName("tilewright"), &cell.own}};
    for (const Contestant &peer : cell.peers)
      all.emplace_back(longName(peer.name), &peer);
    for (const auto &[name, contestant] : all)
      for (const ErrorSample &e : contestant->errors) {
        if (!head)
          html += "<h2>Errors against double precision</h2>\n<div "
                  "class=\"scroll\"><table><thead><tr><th>case</th><th>inputs</th>"
                  "<th>result of</th><th>largest</th><th>rms</th></tr></thead><tbody>\n";
        head = true;
        fmt::format_to(out, "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.2e}</td><td>{:.2e}{}</td></tr>\n",
                       escapeHtml(cell.benchCase.name), escapeHtml(e.data), escapeHtml(name), e.maxAbs, e.rms,
                       e.finite ? "" : ", not finite");
      }
  }
  if (head) html += "</tbody></table></div>\n";
}

} // namespace

std::string toHtml(const BenchResult &result) {
  std::string html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>Tilewright attention benchmark</title>\n<style>\n";
  html += embeddedFile("page.css");
  auto out = std::back_inserter(html);
  html += "</style>\n</head>\n<body>\n<h1>Attention on ";
  fmt::format_to(
      out,
      "{}</h1>\n<p>{}. {}, {}. Medians of {} launches timed one by one after {} warm-ups, {} s of pause before "
      "each series, peers interleaved cell by cell.",
      escapeHtml(result.device), escapeHtml(result.started), escapeHtml(result.target), escapeHtml(result.driver),
      result.repeats, result.warmups, result.pauseSeconds);
  if (!result.peersFrom.empty()) fmt::format_to(out, " Peers: {}.", escapeHtml(result.peersFrom));
  if (result.interrupted)
    fmt::format_to(out, " <b>Interrupted after {} of {} cells.</b>", result.cells.size(), result.planned);
  html += "</p>\n";
  addSummary(html, result);
  if (std::ranges::find(result.peers, "fa3_estimate") != result.peers.end())
    fmt::format_to(out,
                   "<p class=\"hint\">FA3 was not run: its bars are cuDNN's figures of this run times their ratio in "
                   "an earlier run: {}.</p>\n",
                   escapeHtml(fa3Source()));
  addLegend(html, result);
  html += "<div class=\"charts\">\n";
  for (const BarChart &chart : chartsOf(result))
    fmt::format_to(out, "<figure{}><figcaption>{}</figcaption>\n{}</figure>\n", chart.wide ? " class=\"wide\"" : "",
                   escapeHtml(chart.title), toSvg(chart));
  html += "</div>\n";
  addTable(html, result);
  addErrors(html, result);
  html += "</body>\n</html>\n";
  return html;
}

} // namespace tilewright::bench
