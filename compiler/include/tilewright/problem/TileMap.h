// Which tiles of a problem are empty, full or partial, and how many (q, k) pairs the mask lets through: what the tools
// show and count FLOPs with. Obtained by running, on the host, the very functions that tw-classify-tiles put into the
// kernels.
#pragma once

#include "tilewright/expr/Evaluator.h"
#include "tilewright/plan/Problem.h"

namespace tilewright {

struct TileCounts {
  int64_t empty = 0, full = 0, partial = 0;
  bool operator==(const TileCounts &) const = default;
};

enum class TileClass : char { Empty, Partial, Full };

class TileMap {
public:
  /// Classifies the tiles of one (head, batch entry). `tables` hold the contents of Problem::tables, in order.
  static Expected<TileMap> make(const Problem &problem, int64_t tileQ, int64_t tileKV,
                                const std::vector<expr::TableData> &tables);

  int64_t rows() const { return tilesQ; }
  int64_t cols() const { return tilesKV; }
  /// Class of tile (i, j) for query head 0 of batch entry 0.
  TileClass at(int64_t i, int64_t j) const { return classes[i * tilesKV + j]; }

  /// Over all heads and batch entries.
  TileCounts counts;
  /// Visible pairs over all heads and batch entries; estimated from sampled rows where `pairsEstimated`.
  double visiblePairs = 0;
  bool pairsEstimated = false;

private:
  int64_t tilesQ = 0, tilesKV = 0;
  std::vector<TileClass> classes;
};

} // namespace tilewright
