// The report as a self-contained HTML page: heat maps over tile sizes, rankings, failures, clocks.
#include "../bench/Chart.h"
#include "../bench/Embedded.h"
#include "HeatMap.h"
#include "TuneReport.h"
#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <set>

namespace tilewright::tune {
namespace {

using bench::escapeHtml;

constexpr size_t kRanked = 25;

bool ownsKeys(KernelRole role) { return role == KernelRole::DKV || role == KernelRole::Fused; }

/// One or two characters for what became of candidates that were not timed.
const char *markOf(TuningOutcome outcome) {
  switch (outcome) {
  case TuningOutcome::Spills:
    return "sp";
  case TuningOutcome::CompileFailed:
    return "cf";
  case TuningOutcome::WrongResult:
    return "wr";
  case TuningOutcome::Crashed:
    return "cr";
  case TuningOutcome::TimedOut:
    return "to";
  case TuningOutcome::Invalid:
    return "in";
  case TuningOutcome::Ok:
    break;
  }
  return "";
}

HeatMap mapOf(const KernelReport &kernel) {
  HeatMap map;
  map.title = fmt::format("{}: time over the fastest, by tile sizes", toString(kernel.role));
  const bool keys = ownsKeys(kernel.role);
  map.xTitle = keys ? "tile_q (streamed)" : "tile_kv (streamed)";
  map.yTitle = keys ? "tile_kv (owned)" : "tile_q (owned)";
  std::set<int> xs, ys;
  auto x = [&](const Schedule &s) { return keys ? s.tileQ : s.tileKV; };
  auto y = [&](const Schedule &s) { return keys ? s.tileKV : s.tileQ; };
  double fastest = 0;
  for (const TunedCandidate &row : kernel.rows) {
    xs.insert(x(row.schedule));
    ys.insert(y(row.schedule));
    if (row.outcome == TuningOutcome::Ok && (fastest == 0 || row.ms < fastest)) fastest = row.ms;
  }
  map.xs.assign(xs.begin(), xs.end());
  map.ys.assign(ys.rbegin(), ys.rend());
  const TunedCandidate *winner = kernel.winner();
  for (int tileY : map.ys)
    for (int tileX : map.xs) {
      HeatCell cell;
      cell.text = fmt::format("{} x {}: not tried", tileY, tileX);
      const TunedCandidate *best = nullptr;
      size_t tried = 0;
      for (const TunedCandidate &row : kernel.rows) {
        if (x(row.schedule) != tileX || y(row.schedule) != tileY) continue;
        ++tried;
        if (row.outcome != TuningOutcome::Ok)
          cell.mark = markOf(row.outcome);
        else if (!best || row.ms < best->ms)
          best = &row;
        cell.isDefault |= row.schedule == kernel.byDefault;
        cell.isWinner |= winner && row.schedule == winner->schedule;
      }
      if (best) {
        // What the winner is compared by: its own confirmed time.
        const double ms = cell.isWinner ? winner->ms : best->ms;
        cell.slowdown = std::max(1.0, ms / fastest);
        cell.text = fmt::format("{:.4f} ms, {}; {} tried here", ms, best->schedule.canonicalText(), tried);
      } else if (tried) {
        cell.text = fmt::format("{} x {}: {} tried, none timed", tileY, tileX, tried);
      }
      map.cells.push_back(std::move(cell));
    }
  return map;
}

void addCards(std::string &html, const TuneReport &report, const ProblemReport &problem) {
  auto out = std::back_inserter(html);
  html += "<div class=\"cards\">";
  for (Direction direction : {Direction::Forward, Direction::Backward}) {
    const auto before = problem.defaultMs(direction, report.target), after = problem.tunedMs(direction);
    if (!before || !after) continue;
    const char *name = direction == Direction::Forward ? "forward" : "gradients";
    std::string how;
    if (direction == Direction::Backward && problem.strategy())
      how = fmt::format(" by {}", toString(*problem.strategy()));
    fmt::format_to(out,
                   "<div class=\"card\"><div class=\"cardhead\">{}{}</div><div class=\"figure {}\">{:.3f}x</div>"
                   "<div class=\"hint\">{:.4f} ms, by default {:.4f} ms</div></div>\n",
                   name, how, *before >= *after * 0.9999 ? "ahead" : "behind", *before / *after, *after, *before);
  }
  html += "</div>\n";
}

void addSummary(std::string &html, const TuneReport &report, const ProblemReport &problem) {
  auto out = std::back_inserter(html);
  html +=
      "<div class=\"scroll\"><table><thead><tr><th>kernel</th><th>default ms</th><th>winner ms</th><th>gain</th>"
      "<th>TFLOP/s</th><th>of peak</th><th>SM MHz</th><th>candidates</th><th>combinations</th><th>left out: form</th>"
      "<th>shared memory</th><th>registers</th><th>cost model</th><th>winner</th></tr></thead><tbody>\n";
  for (const KernelReport &kernel : problem.kernels) {
    const TunedCandidate *winner = kernel.winner(), *before = kernel.defaultRow();
    fmt::format_to(out, "<tr><td>{}</td><td>{}</td>", toString(kernel.role),
                   before ? fmt::format("{:.4f}", before->ms) : "&ndash;");
    if (winner) {
      const double rate = kernelFlops(problem, kernel.role) / (winner->ms * 1e-3);
      const auto peak = matrixPeak(report.target, kernel.problem.dtype, winner->clockMhz);
      fmt::format_to(out,
                     "<td class=\"own\">{:.4f}</td><td class=\"{}\">{:.3f}x</td><td>{:.3f}</td><td>{}</td><td>{}</td>",
                     winner->ms, kernel.gain() >= 1 ? "ahead" : "behind", kernel.gain(), rate * 1e-12,
                     peak ? fmt::format("{:.0f} %", 100 * rate / *peak) : "&ndash;",
                     winner->clockMhz > 0 ? fmt::format("{:.0f}", winner->clockMhz) : "&ndash;");
    } else {
      html += "<td>none</td><td>&ndash;</td><td>&ndash;</td><td>&ndash;</td><td>&ndash;</td>";
    }
    fmt::format_to(out, "<td>{}</td><td>{}</td>", kernel.list.kept.size(), kernel.list.considered);
    for (PruneReason reason :
         {PruneReason::Form, PruneReason::SharedMemory, PruneReason::Registers, PruneReason::CostModel}) {
      auto found = kernel.list.pruned.find(reason);
      fmt::format_to(out, "<td>{}</td>", found == kernel.list.pruned.end() ? 0 : found->second);
    }
    fmt::format_to(out, "<td class=\"schedule\">{}</td></tr>\n",
                   winner ? escapeHtml(differenceText(winner->schedule, kernel.byDefault)) : "");
  }
  html += "</tbody></table></div>\n";
}

void addRanking(std::string &html, const KernelReport &kernel) {
  std::vector<const TunedCandidate *> timed;
  for (const TunedCandidate &row : kernel.rows)
    if (row.outcome == TuningOutcome::Ok) timed.push_back(&row);
  if (timed.empty()) return;
  std::ranges::sort(timed, {}, &TunedCandidate::ms);
  const TunedCandidate *winner = kernel.winner();
  auto out = std::back_inserter(html);
  fmt::format_to(
      out,
      "<details{}><summary>{}: ranking, the first {} of {} that were timed</summary><div class=\"scroll\"><table>"
      "<thead><tr><th>#</th><th>ms</th><th>fastest &ndash; slowest</th><th>launches</th><th>SM MHz</th><th></th>"
      "<th style=\"text-align:left\">tile_q x tile_kv: what differs from the default</th></tr></thead><tbody>\n",
      kernel.role == KernelRole::Forward ? " open" : "", toString(kernel.role), std::min(kRanked, timed.size()),
      timed.size());
  const double slowest = timed[std::min(kRanked, timed.size()) - 1]->ms;
  for (size_t i = 0; i < timed.size(); ++i) {
    const TunedCandidate &row = *timed[i];
    const bool byDefault = row.schedule == kernel.byDefault, best = winner && row.schedule == winner->schedule;
    if (i >= kRanked && !byDefault && !best) continue;
    fmt::format_to(out,
                   "<tr><td>{}</td><td class=\"own\">{:.4f}{}</td><td>{:.4f} &ndash; {:.4f}</td><td>{}</td><td>{}</td>"
                   "<td style=\"text-align:left\"><span class=\"bar{}\" style=\"width:{:.0f}px\"></span></td>"
                   "<td class=\"schedule\" title=\"{}\">{} x {}{}{}</td></tr>\n",
                   i + 1, row.ms, row.confirmed ? " *" : "", row.fastestMs, row.slowestMs, row.repeats,
                   row.clockMhz > 0 ? fmt::format("{:.0f}", row.clockMhz) : "&ndash;",
                   best        ? " best"
                   : byDefault ? " byDefault"
                               : "",
                   std::min(160.0, 160 * row.ms / slowest), escapeHtml(row.schedule.canonicalText()),
                   row.schedule.tileQ, row.schedule.tileKV,
                   byDefault ? ", <b>default</b>" : ": " + escapeHtml(differenceText(row.schedule, kernel.byDefault)),
                   best ? ", <b>winner</b>" : "");
  }
  html += "</tbody></table></div></details>\n";
}

void addFailures(std::string &html, const ProblemReport &problem) {
  auto out = std::back_inserter(html);
  size_t count = 0;
  std::string rows;
  for (const KernelReport &kernel : problem.kernels)
    for (const TunedCandidate &row : kernel.rows)
      if (row.outcome != TuningOutcome::Ok) {
        ++count;
        fmt::format_to(std::back_inserter(rows),
                       "<tr><td>{}</td><td>{}</td><td class=\"schedule\">{}</td><td class=\"text\">{}</td></tr>\n",
                       toString(kernel.role), toString(row.outcome), escapeHtml(row.schedule.canonicalText()),
                       escapeHtml(row.detail));
      }
  if (count == 0) {
    html += "<p class=\"hint\">No candidate failed.</p>\n";
    return;
  }
  fmt::format_to(
      out,
      "<details><summary>{} candidates were not timed</summary><div class=\"scroll\"><table><thead><tr><th>kernel"
      "</th><th>outcome</th><th>schedule</th><th>why</th></tr></thead><tbody>\n{}</tbody></table></div></details>\n",
      count, rows);
}

void addProblem(std::string &html, const TuneReport &report, const ProblemReport &problem) {
  auto out = std::back_inserter(html);
  fmt::format_to(out, "<section>\n<h2>{}</h2>\n", escapeHtml(problemText(problem.problem)));
  if (!problem.failure.empty()) {
    fmt::format_to(out, "<p class=\"behind\">Not measured: {}</p></section>\n", escapeHtml(problem.failure));
    return;
  }
  size_t measured = 0, reused = 0, left = 0;
  for (const KernelReport &kernel : problem.kernels) {
    measured += kernel.measured;
    reused += kernel.reused;
    left += kernel.left();
  }
  fmt::format_to(out, "<p>{} candidates measured in {:.0f} s, {} known from before{}.</p>\n", measured, problem.seconds,
                 reused, left ? fmt::format(", {} left for another run", left) : "");
  addCards(html, report, problem);
  addSummary(html, report, problem);
  html += "<div class=\"maps\">\n";
  for (const KernelReport &kernel : problem.kernels)
    if (const HeatMap map = mapOf(kernel); !map.cells.empty())
      fmt::format_to(out, "<figure><figcaption>{}</figcaption>\n{}</figure>\n", escapeHtml(map.title), toSvg(map));
  html += "</div>\n";
  for (const KernelReport &kernel : problem.kernels)
    addRanking(html, kernel);
  addFailures(html, problem);
  html += "</section>\n";
}

} // namespace

std::string toHtml(const TuneReport &report) {
  std::string html = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                     "content=\"width=device-width, initial-scale=1\">\n<title>Tilewright tuning</title>\n<style>\n";
  html += bench::embeddedFile("page.css");
  html += bench::embeddedFile("tune.css");
  auto out = std::back_inserter(html);
  const TuningEnvironment &e = report.environment;
  fmt::format_to(out,
                 "</style>\n</head>\n<body>\n<h1>Tuning on {}</h1>\n<p>{}. {}{}{}, {}. Times: {}. A time with * was "
                 "taken in turns with the best others and the default; medians within 1 % count as equal, and the "
                 "default is kept then.",
                 escapeHtml(e.device), escapeHtml(report.started), escapeHtml(e.target), e.driver.empty() ? "" : ", ",
                 escapeHtml(e.driver), escapeHtml(e.compiler), escapeHtml(e.policy));
  if (report.interrupted) html += " <b>Interrupted.</b>";
  html += "</p>\n<p class=\"legend scale\"><span style=\"background:var(--h0)\"></span>fastest ";
  for (int shade = 1; shade < 9; ++shade)
    fmt::format_to(out, "<span style=\"background:var(--h{})\"></span>", shade);
  html +=
      "<span style=\"background:var(--h9)\"></span>twice its time and more "
      "<span class=\"hint\" style=\"width:auto;height:auto\">solid frame: winner; dashed: default; grey: not tried, or "
      "sp spills, cf not compiled, wr wrong, cr crashed, to timed out</span></p>\n";
  for (const ProblemReport &problem : report.problems)
    addProblem(html, report, problem);
  html += "</body>\n</html>\n";
  return html;
}

} // namespace tilewright::tune
