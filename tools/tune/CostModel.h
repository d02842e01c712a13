// A guess at how long a candidate takes, relative to others of the same kernel: good enough to leave out what is far
// from the best and to measure the likely ones first, never to decide.
#pragma once

#include "tilewright/plan/Schedule.h"
#include <functional>

namespace tilewright::tune {

/// Tiles of tileQ x tileKV that the mask leaves, over all heads and batch entries.
using VisitCount = std::function<double(int tileQ, int tileKV)>;

class CostModel {
public:
  CostModel(const Problem &problem, const Target &target, KernelRole role, VisitCount visits)
      : problem(problem), target(target), role(role), visits(std::move(visits)) {}

  /// Of a valid schedule, in arbitrary units.
  double cost(const Schedule &schedule) const;

private:
  double cpuCost(const Schedule &schedule) const;
  double sm80Cost(const Schedule &schedule) const;
  double sm90Cost(const Schedule &schedule) const;
  /// Visits of the schedule's tiles; packed heads share theirs.
  double visitsOf(const Schedule &schedule) const;
  /// Multiply-adds of all visits, the padding of tiles included, with `overhead` columns' worth of other work a row.
  double work(const Schedule &schedule, double overhead) const;
  /// How much longer than perfectly dealt blocks take on `places` processors.
  double waves(double blocks, double places) const;

  const Problem &problem;
  const Target &target;
  KernelRole role;
  VisitCount visits;
};

} // namespace tilewright::tune
