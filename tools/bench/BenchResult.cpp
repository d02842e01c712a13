#include "BenchResult.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::bench {
namespace {

struct Name {
  std::string_view name, display, full;
};
constexpr Name kNames[] = {
    {"tilewright", "Tilewright", "Tilewright"},
    {"cudnn", "cuDNN", "cuDNN"},
    {"fa3_estimate", "FA3 est.", "FA3 (by its measured ratio to cuDNN)"},
    {"fa2", "FA2", "FlashAttention-2"},
    {"flex", "Flex", "FlexAttention"},
};

nlohmann::json orNull(const std::optional<double> &value) { return value ? nlohmann::json(*value) : nlohmann::json(); }

/// JSON has no infinity; a result with a value that is not finite has no error figures.
nlohmann::json finiteOrNull(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); }

nlohmann::json toJson(const CellResult &cell, const Contestant &contestant) {
  nlohmann::json json = {{"ms", nullptr},         {"tflops", nullptr},    {"kv_gb_s", nullptr},
                         {"clock_mhz", nullptr},  {"power_w", nullptr},   {"clock_after_mhz", nullptr},
                         {"ms_fastest", nullptr}, {"ms_slowest", nullptr}};
  if (const auto &series = contestant.series) {
    json["ms"] = series->ms;
    json["tflops"] = cell.benchCase.flops() / series->ms * 1e-9;
    json["kv_gb_s"] = cell.benchCase.kvBytes() / series->ms * 1e-6;
    if (!contestant.estimated) {
      json["clock_mhz"] = orNull(series->clockMhz);
      json["clock_after_mhz"] = orNull(series->clockAfterMhz);
      json["power_w"] = orNull(series->powerW);
      json["ms_fastest"] = series->fastestMs;
      json["ms_slowest"] = series->slowestMs;
      json["queued"] = series->queued;
    }
  }
  if (contestant.estimated) json["estimated"] = true;
  if (!contestant.why.empty()) json["why"] = contestant.why;
  for (const ErrorSample &e : contestant.errors)
    json["errors"][e.data] = {{"max_abs", finiteOrNull(e.maxAbs)}, {"rms", finiteOrNull(e.rms)}, {"finite", e.finite}};
  return json;
}

/// Own errors over cuDNN's, by kind of inputs.
nlohmann::json errorRatios(const CellResult &cell) {
  nlohmann::json ratios = nlohmann::json::object();
  for (const Contestant &peer : cell.peers)
    if (peer.name == "cudnn")
      for (const ErrorSample &theirs : peer.errors)
        for (const ErrorSample &ours : cell.own.errors)
          if (ours.data == theirs.data && theirs.maxAbs > 0 && theirs.rms > 0)
            ratios[ours.data] = {{"max_abs", finiteOrNull(ours.maxAbs / theirs.maxAbs)},
                                 {"rms", finiteOrNull(ours.rms / theirs.rms)}};
  return ratios;
}

} // namespace

std::string displayName(std::string_view name) {
  for (const Name &entry : kNames)
    if (entry.name == name) return std::string(entry.display);
  return std::string(name);
}

std::string longName(std::string_view name) {
  for (const Name &entry : kNames)
    if (entry.name == name) return std::string(entry.full);
  return std::string(name);
}

double CellResult::rate(const Contestant &contestant) const {
  return contestant.series ? benchCase.rateOf(contestant.series->ms) : 0;
}

const Contestant *CellResult::bestPeer() const {
  const Contestant *best = nullptr;
  for (const Contestant &peer : peers)
    if (peer.series && (!best || peer.series->ms < best->series->ms)) best = &peer;
  return best;
}

std::optional<double> CellResult::ratio() const {
  const Contestant *best = bestPeer();
  if (!best || !own.series) return std::nullopt;
  return best->series->ms / own.series->ms;
}

std::vector<RatioSummary> summarise(const BenchResult &result) {
  std::vector<RatioSummary> summaries;
  auto add = [&](const std::string &label, const CellResult &cell, double ratio) {
    auto known = std::ranges::find(summaries, label, &RatioSummary::label);
    if (known == summaries.end()) {
      summaries.push_back({label, 0, ratio, cell.benchCase.name, 0});
      known = summaries.end() - 1;
    }
    known->geometricMean += std::log(ratio); // a sum of logarithms until the end
    ++known->cells;
    if (ratio < known->worst) {
      known->worst = ratio;
      known->worstCell = cell.benchCase.name;
    }
  };
  for (bool all : {false, true})
    for (const CellResult &cell : result.cells)
      if (std::optional<double> ratio = cell.ratio(); ratio && cell.benchCase.set == "table")
        add(all ? "all" : "d" + cell.benchCase.dims(), cell, *ratio);
  for (RatioSummary &summary : summaries)
    summary.geometricMean = std::exp(summary.geometricMean / static_cast<double>(summary.cells));
  return summaries;
}

nlohmann::json toJson(const BenchResult &result) {
  nlohmann::json cells = nlohmann::json::array();
  for (const CellResult &cell : result.cells) {
    const Problem &p = cell.benchCase.problem;
    nlohmann::json json = toJson(cell, cell.own);
    json["set"] = cell.benchCase.set;
    json["name"] = cell.benchCase.name;
    json["shape"] = {{"batch", p.batch},  {"heads_q", p.headsQ}, {"heads_kv", p.headsKV}, {"seq_q", p.seqQ},
                     {"seq_kv", p.seqKV}, {"dim_qk", p.dimQK},   {"dim_v", p.dimV}};
    json["dtype"] = toString(p.dtype);
    json["mask"] = cell.benchCase.mask;
    json["role"] = cell.role;
    json["schedule"] = cell.schedule;
    json["flops"] = cell.benchCase.flops();
    json["peers"] = nlohmann::json::object();
    for (const Contestant &peer : cell.peers)
      json["peers"][peer.name] = toJson(cell, peer);
    const Contestant *best = cell.bestPeer();
    json["best_peer"] = best ? nlohmann::json(best->name) : nlohmann::json();
    json["ratio_to_best"] = orNull(cell.ratio());
    if (!cell.own.errors.empty()) json["error_ratio_to_cudnn"] = errorRatios(cell);
    cells.push_back(std::move(json));
  }
  nlohmann::json summary = nlohmann::json::array();
  for (const RatioSummary &s : summarise(result))
    summary.push_back({{"cells_of", s.label},
                       {"geometric_mean_ratio", s.geometricMean},
                       {"worst_ratio", s.worst},
                       {"worst_cell", s.worstCell},
                       {"cells", s.cells}});
  return {{"device", result.device},
          {"driver", result.driver},
          {"target", result.target},
          {"started", result.started},
          {"protocol", {{"repeats", result.repeats}, {"warmups", result.warmups}, {"pause_s", result.pauseSeconds}}},
          {"peers_from", result.peersFrom},
          {"peer_names", result.peers},
          {"cells_planned", result.planned},
          {"interrupted", result.interrupted},
          {"cells", std::move(cells)},
          {"summary", std::move(summary)}};
}

} // namespace tilewright::bench
