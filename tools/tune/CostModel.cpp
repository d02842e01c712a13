#include "CostModel.h"
#include "tilewright/plan/Sm90Layout.h"
#include <algorithm>
#include <cmath>

namespace tilewright::tune {
namespace {

bool ownsKeys(KernelRole role) { return role == KernelRole::DKV || role == KernelRole::Fused; }

double tilesOf(int64_t length, int tile) { return std::ceil(static_cast<double>(length) / tile); }

} // namespace

double CostModel::visitsOf(const Schedule &s) const {
  const double packed = static_cast<double>(packedHeads(s, problem));
  const int positions = s.tileQ / static_cast<int>(packed);
  return visits(positions, s.tileKV) / packed;
}

double CostModel::work(const Schedule &s, double overhead) const {
  const double dims = static_cast<double>(problem.dimQK + problem.dimV);
  const double owned = ownsKeys(role) ? s.tileKV : s.tileQ, streamed = ownsKeys(role) ? s.tileQ : s.tileKV;
  // Each visit costs its products, and something that does not shrink with the tile: barriers, loop, row statistics.
  return visitsOf(s) * owned * dims * (streamed + overhead);
}

double CostModel::waves(double blocks, double places) const {
  if (blocks <= 0 || places <= 0) return 1;
  // Under a mask blocks differ, and the short ones fill what a whole wave would leave idle.
  const double ideal = blocks / places, whole = std::ceil(ideal) / ideal;
  return problem.fullMask().empty() || ideal < 1 ? whole : 1 + (whole - 1) / 2;
}

double CostModel::cpuCost(const Schedule &s) const {
  const double owned = ownsKeys(role) ? s.tileKV : s.tileQ;
  const double tiles = ownsKeys(role) ? tilesOf(problem.seqKV, s.tileKV) : tilesOf(problem.seqQ, s.tileQ) * s.splitKV;
  const double heads = static_cast<double>(ownsKeys(role) ? problem.headsKV : problem.headsQ);
  double cost = work(s, 6) * waves(static_cast<double>(problem.batch) * heads * tiles, target.threads);
  // A register block is as many vectors of the owned rows as divide them, up to five (TileStorage.cpp).
  const int lanes = std::max(4, target.vectorBits / 32);
  int vectors = 1;
  for (int candidate : {4, 3, 5, 2})
    if (static_cast<int>(owned) % (candidate * lanes) == 0 && (candidate == 2 || lanes == 16)) {
      vectors = candidate;
      break;
    }
  if (vectors == 1) cost *= lanes == 16 ? 1.6 : 1.3;
  if (vectors == 2 && lanes == 16) cost *= 1.15;
  // Both tiles and the scores between them should lie in the second-level cache.
  const double bytes = 4.0 * (owned * static_cast<double>(2 * problem.dimQK + problem.dimV) +
                              static_cast<double>(s.tileQ) * s.tileKV * (role == KernelRole::Forward ? 1 : 2));
  constexpr double kSecondLevel = 1 << 20;
  if (bytes > kSecondLevel) cost *= 1 + (bytes / kSecondLevel - 1) / 2;
  return cost * (1 + 0.02 * (s.splitKV > 1));
}

double CostModel::sm80Cost(const Schedule &s) const {
  const int64_t shared = s.sharedBytes(problem, target, role) + 1024;
  const int registers = s.registersPerThread(problem, target, role);
  const int byRegisters = static_cast<int>(target.registersPerSM / (int64_t{32} * s.warps * std::max(registers, 64)));
  const int resident = std::clamp(std::min<int>(static_cast<int>(target.sharedBytesPerSM / shared), byRegisters), 1, 8);
  const double warpsOfSM = s.warps * std::max(resident, s.blocksPerSM);
  const bool keys = ownsKeys(role);
  const double rows = static_cast<double>(keys ? s.tileKV : s.tileQ) / (s.warps / s.columnWarps);
  double cost = work(s, 12);
  if (rows < 32) cost *= 1.2; // shared memory feeds fewer products a load (templates/sm80/NOTES.md)
  cost *= warpsOfSM < 4 ? 2 : warpsOfSM < 8 ? 1.2 : 1;
  if (resident == 1 && s.blocksPerSM == 1) cost *= 1.08; // nothing runs beside a block that waits
  if (s.stages == 1 && resident == 1) cost *= 1.15;
  if (role == KernelRole::Fused) cost *= 1 + 8.0 / s.tileKV; // sums of dQ in global memory, once a visit
  const double heads = static_cast<double>(problem.batch * (keys ? problem.headsKV : problem.headsQ));
  const double blocks = heads * (keys ? tilesOf(problem.seqKV, s.tileKV) : tilesOf(problem.seqQ, s.tileQ));
  return cost * waves(blocks, static_cast<double>(target.smCount) * std::max(resident, s.blocksPerSM));
}

double CostModel::sm90Cost(const Schedule &s) const {
  const int groups = s.tileQ / 64;
  double cost = work(s, 12);
  if (groups == 1) cost *= 1.7; // nothing runs under its softmax
  if (groups > 1)
    cost *= s.overlap == Overlap::None       ? 1.1
            : s.overlap == Overlap::Intra    ? 1.02
            : s.overlap == Overlap::PingPong ? 1.01
                                             : 1;
  if (s.tileKV < 64) cost *= 1.25; // a wgmma of few columns waits for shared memory
  if (s.stages == 1) cost *= 1.3;
  const QueryTiles q = queryTiles(s, problem, problem.seqQ, problem.headsQ);
  const double blocks = static_cast<double>(problem.batch * q.heads * q.tiles * s.splitKV);
  constexpr double perBlock = 4; // visits' worth of starting and ending (templates/sm90/NOTES.md)
  cost *= 1 + perBlock * blocks / std::max(visitsOf(s), 1.0);
  if (s.splitKV > 1) cost *= 1.05; // states are written and merged
  return cost * waves(blocks, target.smCount);
}

double CostModel::cost(const Schedule &schedule) const {
  // A last wave of long tiles.
  const bool ownsQ = role == KernelRole::Forward || role == KernelRole::DQ;
  const double tail = ownsQ && schedule.order == Order::Plain && !problem.fullMask().empty() ? 1.04 : 1;
  switch (familyOf(problem, target, role)) {
  case KernelFamily::Cpu:
    return cpuCost(schedule) * tail;
  case KernelFamily::Sm80:
    return sm80Cost(schedule) * tail;
  case KernelFamily::Sm90:
    return sm90Cost(schedule) * tail;
  }
  return 0;
}

} // namespace tilewright::tune
