// The result as a table for a terminal.
#include "BenchResult.h"
#include "MeasuredRatios.h"
#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <map>
#include <set>

namespace tilewright::bench {
namespace {

std::string whole(const std::optional<double> &value) { return value ? fmt::format("{:.0f}", *value) : "-"; }

void addHead(std::string &text, const BenchResult &result, size_t width) {
  fmt::format_to(std::back_inserter(text), "{:<{}} {:>9} {:>10}", "", width, "ms", displayName("tilewright"));
  for (const std::string &peer : result.peers)
    fmt::format_to(std::back_inserter(text), " {:>8}", displayName(peer));
  text += "    ratio  of best    SM MHz  watts\n";
}

void addRow(std::string &text, const CellResult &cell, size_t width) {
  auto out = std::back_inserter(text);
  const auto &own = cell.own.series;
  if (own)
    fmt::format_to(out, "{:<{}} {:>9.4f} {:>10.1f}", cell.benchCase.name, width, own->ms, cell.rate(cell.own));
  else
    fmt::format_to(out, "{:<{}} {:>9} {:>10}", cell.benchCase.name, width, "-", "failed");
  for (const Contestant &peer : cell.peers)
    fmt::format_to(out, " {:>8}", peer.series ? fmt::format("{:.1f}", cell.rate(peer)) : "-");
  const Contestant *best = cell.bestPeer();
  const std::optional<double> ratio = cell.ratio();
  fmt::format_to(out, " {:>8}  {:<8} {:>7} {:>6}\n", ratio ? fmt::format("{:.3f}x", *ratio) : "-",
                 best ? displayName(best->name) : "-",
                 own ? whole(own->clockMhz ? own->clockMhz : own->clockAfterMhz) : "-", own ? whole(own->powerW) : "-");
}

/// Each reason once, with the cells it holds for.
void addReasons(std::string &text, const BenchResult &result) {
  std::map<std::string, std::vector<std::string>> cellsOf;
  std::vector<std::string> order;
  auto add = [&](const Contestant &contestant, const std::string &why, const CellResult &cell) {
    const std::string line = fmt::format("{}: {}", longName(contestant.name), why);
    if (!cellsOf.contains(line)) order.push_back(line);
    cellsOf[line].push_back(cell.benchCase.name);
  };
  auto note = [&](const Contestant &contestant, const CellResult &cell) {
    if (contestant.series && !contestant.series->queued)
      add(contestant, "launches were not queued in time, host time is in the figures", cell);
    if (!contestant.why.empty() && result.peersFrom != "none: " + contestant.why) add(contestant, contestant.why, cell);
  };
  for (const CellResult &cell : result.cells) {
    note(cell.own, cell);
    for (const Contestant &peer : cell.peers)
      note(peer, cell);
  }
  if (!order.empty()) text += "\n";
  for (const std::string &line : order) {
    const auto &cells = cellsOf[line];
    const std::string where = cells.size() == result.cells.size() ? "all cells"
                              : cells.size() == 1                 ? cells.front()
                                                  : fmt::format("{} and {} more", cells.front(), cells.size() - 1);
    fmt::format_to(std::back_inserter(text), "{} ({})\n", line, where);
  }
}

void addErrors(std::string &text, const BenchResult &result, size_t width) {
  auto out = std::back_inserter(text);
  bool head = false;
  for (const CellResult &cell : result.cells)
    for (const ErrorSample &ours : cell.own.errors) {
      if (!head)
        fmt::format_to(out, "\n{:<{}} {:<9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8}\n", "error against fp64", width,
                       "inputs", "max", "rms", "cuDNN max", "rms", "max x", "rms x");
      head = true;
      const ErrorSample *theirs = nullptr;
      for (const Contestant &peer : cell.peers)
        if (peer.name == "cudnn")
          for (const ErrorSample &sample : peer.errors)
            if (sample.data == ours.data) theirs = &sample;
      fmt::format_to(out, "{:<{}} {:<9} {:>10.2e} {:>10.2e}", cell.benchCase.name, width, ours.data, ours.maxAbs,
                     ours.rms);
      if (theirs && theirs->maxAbs > 0 && theirs->rms > 0)
        fmt::format_to(out, " {:>10.2e} {:>10.2e} {:>8.2f} {:>8.2f}", theirs->maxAbs, theirs->rms,
                       ours.maxAbs / theirs->maxAbs, ours.rms / theirs->rms);
      text += ours.finite ? "\n" : "  values that are not finite\n";
    }
}

} // namespace

std::string toText(const BenchResult &result) {
  std::string text;
  auto out = std::back_inserter(text);
  size_t width = 20;
  std::set<Rate> rates;
  for (const CellResult &cell : result.cells) {
    width = std::max(width, cell.benchCase.name.size());
    rates.insert(cell.benchCase.rate);
  }
  fmt::format_to(out, "{}, {}, {}\nmedians of {} launches after {} warm-ups, {} s of pause before each series\n",
                 result.device, result.target, result.driver, result.repeats, result.warmups, result.pauseSeconds);
  if (!result.peersFrom.empty()) fmt::format_to(out, "peers: {}\n", result.peersFrom);
  for (Rate rate : rates) {
    fmt::format_to(out, "\n{}\n", rate == Rate::Flops ? "TFLOP/s" : "GB/s of K and V");
    addHead(text, result, width);
    for (const CellResult &cell : result.cells)
      if (cell.benchCase.rate == rate) addRow(text, cell, width);
  }
  const std::vector<RatioSummary> summaries = summarise(result);
  if (!summaries.empty()) text += "\nratio to the best peer, cells of the table\n";
  for (const RatioSummary &s : summaries)
    fmt::format_to(out, "{:<8} geometric mean {:.3f}x of {} cells, worst {:.3f}x ({})\n", s.label, s.geometricMean,
                   s.cells, s.worst, s.worstCell);
  addErrors(text, result, width);
  addReasons(text, result);
  if (std::ranges::find(result.peers, "fa3_estimate") != result.peers.end())
    fmt::format_to(out, "\n{}: {}; their ratio is from {}\n", displayName("fa3_estimate"), longName("fa3_estimate"),
                   fa3Source());
  if (result.interrupted)
    fmt::format_to(out, "\ninterrupted after {} of {} cells\n", result.cells.size(), result.planned);
  return text;
}

} // namespace tilewright::bench
