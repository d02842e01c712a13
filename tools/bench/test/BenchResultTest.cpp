#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "BenchResult.h"
#include "Chart.h"
#include "SampleResult.h"
#include <algorithm>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fstream>
#include <nlohmann/json.hpp>

using namespace tilewright;
using namespace tilewright::bench;

namespace {

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size()))
    ++found;
  return found;
}

/// Every tag closed in the order it was opened. Knows the void elements that the page uses.
std::string unbalanced(std::string_view html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string_view::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string_view::npos) return "a tag without an end";
    std::string_view tag = html.substr(at + 1, end - at - 1);
    if (tag.starts_with('!') || tag.ends_with('/')) continue;
    const bool closing = tag.starts_with('/');
    std::string name(tag.substr(closing, tag.find_first_of(" \n", closing) - closing));
    if (name == "meta" || name == "br") continue;
    if (!closing)
      open.push_back(name);
    else if (open.empty() || open.back() != name)
      return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back());
    else
      open.pop_back();
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

CellResult cellWith(double own, double cudnn, double fa3) {
  CellResult cell;
  cell.benchCase = benchCases({.dims = "64", .seqs = "512", .masks = "none"})->front();
  auto series = [](double ms) {
    SeriesFigures figures;
    figures.ms = ms;
    return figures;
  };
  cell.own = {"tilewright", series(own), false, {}, {}};
  cell.peers = {{"cudnn", series(cudnn), false, {}, {}}, {"fa3_estimate", series(fa3), true, {}, {}}};
  return cell;
}

} // namespace

TEST_CASE("the best peer is the fastest one with figures") {
  CellResult cell = cellWith(2, 3, 2.5);
  REQUIRE(cell.bestPeer());
  CHECK(cell.bestPeer()->name == "fa3_estimate");
  CHECK(cell.ratio().value() == doctest::Approx(1.25));
  cell.peers[1].series.reset();
  CHECK(cell.bestPeer()->name == "cudnn");
  CHECK(cell.ratio().value() == doctest::Approx(1.5));
  cell.peers.clear();
  CHECK_FALSE(cell.ratio().has_value());
  cell = cellWith(2, 3, 2.5);
  cell.own.series.reset();
  CHECK_FALSE(cell.ratio().has_value());
  CHECK(cell.rate(cell.own) == 0);
}

TEST_CASE("summaries are geometric means by head dim and over all") {
  BenchResult result;
  result.peers = {"cudnn", "fa3_estimate"};
  result.cells = {cellWith(1, 2, 4), cellWith(1, 0.5, 4), cellWith(1, 3, 3)};
  result.cells[2].benchCase.problem.dimQK = result.cells[2].benchCase.problem.dimV = 128;
  CellResult named = cellWith(1, 100, 100);
  named.benchCase.set = "hopper";
  result.cells.push_back(named);
  const auto summaries = summarise(result);
  REQUIRE(summaries.size() == 3);
  CHECK(summaries[0].label == "d64");
  CHECK(summaries[0].geometricMean == doctest::Approx(1));
  CHECK(summaries[0].worst == doctest::Approx(0.5));
  CHECK(summaries[0].cells == 2);
  CHECK(summaries[1].label == "d128");
  CHECK(summaries[2].label == "all");
  CHECK(summaries[2].geometricMean == doctest::Approx(std::cbrt(3.0)));
  CHECK(summarise({}).empty());
}

TEST_CASE("JSON has one object a cell") {
  const BenchResult result = sampleResult();
  const nlohmann::json json = nlohmann::json::parse(toJson(result).dump());
  REQUIRE(json["cells"].size() == 45);
  for (const nlohmann::json &cell : json["cells"]) {
    for (const char *key : {"shape", "dtype", "mask", "role", "schedule", "ms", "tflops", "kv_gb_s", "clock_mhz",
                            "power_w", "peers", "best_peer", "ratio_to_best"})
      CHECK_MESSAGE(cell.contains(key), key);
    CHECK(cell["peers"].size() == 4);
    for (const char *key : {"ms", "tflops", "clock_mhz", "power_w"}) {
      CHECK(cell["peers"]["cudnn"][key].is_number());
      CHECK(cell["peers"]["flex"][key].is_null());
    }
    CHECK(cell["peers"]["fa3_estimate"]["estimated"] == true);
    CHECK(cell["error_ratio_to_cudnn"]["normal"]["max_abs"] == doctest::Approx(0.5));
  }
  const nlohmann::json &first = json["cells"][0];
  CHECK(first["tflops"].get<double>() * first["ms"].get<double>() * 1e9 ==
        doctest::Approx(first["flops"].get<double>()));
  CHECK(first["peers"]["flex"]["why"] == "not <measured> & why");
  CHECK(json["summary"].back()["cells"] == 36);
  CHECK(json["interrupted"] == false);
}

TEST_CASE("figures that are missing or not finite are null") {
  BenchResult result;
  result.peers = {"cudnn", "fa3_estimate"};
  result.cells = {cellWith(1, 2, 3)};
  CellResult &cell = result.cells[0];
  cell.own.errors = {{"sink", INFINITY, NAN, false}};
  cell.own.series.reset();
  cell.own.why = "refused";
  const nlohmann::json json = toJson(result);
  CHECK(json["cells"][0]["ms"].is_null());
  CHECK(json["cells"][0]["ratio_to_best"].is_null());
  CHECK(json["cells"][0]["errors"]["sink"]["max_abs"].is_null());
  CHECK(json["cells"][0]["peers"]["cudnn"]["clock_mhz"].is_null());
  CHECK(json.dump().find("nan") == std::string::npos);
  CHECK(unbalanced(toHtml(result)) == "");
  CHECK(toText(result).find("refused") != std::string::npos);
}

TEST_CASE("the table shows every cell, the summary and each reason once") {
  BenchResult result = sampleResult();
  result.interrupted = true;
  result.planned = 50;
  result.cells[3].peers[2].series->queued = false;
  const std::string text = toText(result);
  CHECK(text.find("FlashAttention-2: launches were not queued in time, host time is in the figures (d64 none 4096)") !=
        std::string::npos);
  for (const CellResult &cell : result.cells)
    CHECK_MESSAGE(text.find(cell.benchCase.name) != std::string::npos, cell.benchCase.name);
  CHECK(text.find("GB/s of K and V") != std::string::npos);
  CHECK(text.find("geometric mean") != std::string::npos);
  CHECK(count(text, "not <measured> & why") == 1);
  CHECK(text.find("interrupted after 45 of 50 cells") != std::string::npos);
}

TEST_CASE("the page is well-formed, escaped and loads nothing") {
  const BenchResult result = sampleResult();
  const std::string html = toHtml(result);
  CHECK(unbalanced(html) == "");
  CHECK(count(html, "<figure") == 8); // six of the grid, the named cases, decode
  CHECK(html.find("not <measured>") == std::string::npos);
  CHECK(html.find("not &lt;measured&gt; &amp; why") != std::string::npos);
  for (const char *outside : {"http:", "https:", "<script", "@import", "url(", "<link", "<img"})
    CHECK_MESSAGE(html.find(outside) == std::string::npos, outside);
  CHECK(html.find("prefers-color-scheme: dark") != std::string::npos);
  for (const CellResult &cell : result.cells)
    CHECK(count(html, cell.benchCase.name) >= 1);
  // With TILEWRIGHT_BENCH_PAGE set the page is kept, to be looked at.
  if (const char *path = std::getenv("TILEWRIGHT_BENCH_PAGE")) std::ofstream(path) << html;
}

TEST_CASE("bars are as high as their values") {
  BarChart chart;
  chart.title = "a & b";
  chart.unit = "TFLOP/s";
  chart.series = {"x", "y"};
  chart.groups = {{"512", "", false, {{0, 400, false}, {1, 200, true}}}};
  const std::string svg = toSvg(chart);
  CHECK(unbalanced(svg) == "");
  CHECK(svg.find("a &amp; b") != std::string::npos);
  std::vector<double> heights;
  for (size_t at = svg.find(" height=\""); at != std::string::npos; at = svg.find(" height=\"", at + 1))
    heights.push_back(std::atof(svg.c_str() + at + 9));
  REQUIRE(heights.size() == 2);
  CHECK(heights[0] == doctest::Approx(2 * heights[1]).epsilon(0.01));
  CHECK(count(svg, "estimated") == 1);
  CHECK(unbalanced(toSvg({})) == "");
}
