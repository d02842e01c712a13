// A made-up result for tests of what is drawn and written from one: shapes of the table with smooth invented figures.
#pragma once

#include "BenchResult.h"
#include "MeasuredRatios.h"
#include <cmath>

namespace tilewright::bench {

inline BenchResult sampleResult(const GridOptions &options = {.cases = "table,hopper"}) {
  BenchResult result;
  result.device = "Imaginary GPU";
  result.driver = "driver for CUDA 13.0";
  result.target = "sm_90a";
  result.started = "2026-01-31 12:00:00";
  result.repeats = 30;
  result.warmups = 10;
  result.pauseSeconds = 0.3;
  result.peersFrom = "PyTorch 2.11.0, cuDNN 9.19.0";
  result.peers = {"cudnn", "fa3_estimate", "fa2", "flex"};
  const auto cases = benchCases(options);
  result.planned = cases->size();
  for (const BenchCase &c : *cases) {
    CellResult cell;
    cell.benchCase = c;
    cell.role = c.problem.direction == Direction::Forward ? "forward" : "backward";
    cell.schedule = "tile_q=128,tile_kv=128,stages=2,warps=8";
    const double length = std::log2(static_cast<double>(c.problem.seqKV) / 256);
    const double speed = c.rate == Rate::Bytes ? 4000 : 350 + 60 * length + static_cast<double>(c.problem.dimV);
    auto figures = [&](double share) {
      SeriesFigures f;
      f.ms = (c.rate == Rate::Bytes ? c.kvBytes() * 1e-6 : c.flops() * 1e-9) / (speed * share);
      f.fastestMs = f.ms * 0.98;
      f.slowestMs = f.ms * 1.05;
      f.clockMhz = 1755;
      f.clockAfterMhz = 1748.5;
      f.powerW = 612.5;
      return f;
    };
    cell.own = {"tilewright", figures(1), false, {}, {}};
    Contestant cudnn{"cudnn", figures(0.8 + 0.03 * length), false, {}, {}}, fa3{"fa3_estimate", {}, true, {}, {}};
    if (auto ratio = fa3OverCudnn(c)) {
      fa3.series = SeriesFigures{};
      fa3.series->ms = cudnn.series->ms / *ratio;
    } else {
      fa3.why = "no measured ratio for this shape";
    }
    Contestant fa2{"fa2", figures(0.5), false, {}, {}}, flex{"flex", {}, false, "not <measured> & why", {}};
    cell.own.errors = {{"normal", 2e-3, 1e-4, true}};
    cudnn.errors = {{"normal", 4e-3, 1e-4, true}};
    cell.peers = {cudnn, fa3, fa2, flex};
    result.cells.push_back(std::move(cell));
  }
  return result;
}

} // namespace tilewright::bench
