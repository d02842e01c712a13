// What a run of `tilewright bench attention` found, and the comparisons drawn from it. Plain values.
#pragma once

#include "BenchCase.h"
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace tilewright::bench {

/// One series: some launches timed one by one.
struct SeriesFigures {
  double ms = 0; ///< Median of the launches.
  double fastestMs = 0, slowestMs = 0;
  bool queued = true; ///< All launches were queued before the first began: no host time is in the figures.
  // Null where the machine does not tell.
  std::optional<double> clockMhz;      ///< SM clock, mean over the series (NVML).
  std::optional<double> clockAfterMhz; ///< SM clock counted by the GPU itself in the moment after the last launch.
  std::optional<double> powerW;        ///< Mean over the series (NVML).
};

/// Errors of one result O against double precision, on sampled rows.
struct ErrorSample {
  std::string data; ///< Kind of inputs: "normal", "outliers", "sink".
  double maxAbs = 0, rms = 0;
  bool finite = true; ///< Every value is finite where the reference's is.
};

/// One implementation in one cell: figures, or why there are none.
struct Contestant {
  std::string name; ///< "tilewright", "cudnn", "fa2", "flex", "fa3_estimate"
  std::optional<SeriesFigures> series;
  bool estimated = false; ///< From a measured ratio of an earlier run instead of this one.
  std::string why;        ///< Why there are no figures, or in which way they were obtained.
  std::vector<ErrorSample> errors;
};

struct CellResult {
  BenchCase benchCase;
  std::string role; ///< "forward" or "backward"
  std::string schedule;
  Contestant own;
  std::vector<Contestant> peers; ///< In the order of BenchResult::peers.

  /// TFLOP/s or GB/s; 0 without figures.
  double rate(const Contestant &contestant) const;
  /// The fastest peer with figures; null when there is none.
  const Contestant *bestPeer() const;
  /// Own rate over the fastest peer's; nullopt without either.
  std::optional<double> ratio() const;
};

struct BenchResult {
  std::string device, driver, target, started; ///< `started` is local time, "2026-01-31 12:00:00".
  int repeats = 0, warmups = 0;
  double pauseSeconds = 0;
  std::string peersFrom;          ///< "PyTorch 2.11.0, cuDNN 9.19.0", or why there are none.
  std::vector<std::string> peers; ///< Names, in the order of the columns.
  std::vector<CellResult> cells;
  size_t planned = 0; ///< Cells that were asked for.
  bool interrupted = false;
};

/// Column head of an implementation: "cuDNN", "FA3 est.".
std::string displayName(std::string_view name);
/// The same in full, for legends and notes: "FA3 (by its measured ratio to cuDNN)".
std::string longName(std::string_view name);

struct RatioSummary {
  std::string label; ///< "d64", "all"
  double geometricMean = 0, worst = 0;
  std::string worstCell;
  size_t cells = 0;
};

/// Ratios to the best peer of the cells of set "table", by head dims in order of appearance and over all. Cells without
/// a ratio do not count; no entry is empty.
std::vector<RatioSummary> summarise(const BenchResult &result);

/// {"device": ..., "protocol": {...}, "cells": [...], "summary": [...]}; figures that were not taken are null.
nlohmann::json toJson(const BenchResult &result);

/// The table as text for a terminal, with notes on columns below it.
std::string toText(const BenchResult &result);

/// A self-contained HTML page: charts by (head dims, mask), summary, table. Loads nothing from anywhere.
std::string toHtml(const BenchResult &result);

} // namespace tilewright::bench
