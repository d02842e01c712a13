// Brings measurements into the store as they come. While the disk is full, or another process holds the store for too
// long, they wait in memory and go with the next ones.
#pragma once

#include "tilewright/tuning/TunedStore.h"

namespace tilewright::tune {

class ResultWriter {
public:
  explicit ResultWriter(std::shared_ptr<TunedStore> store) : store(std::move(store)) {}

  void add(TunedCandidate candidate);
  /// Tries again for so long; what is left then is lost.
  void finish(double seconds);

  size_t unsaved() const { return waiting.size(); }

private:
  bool flush();

  std::shared_ptr<TunedStore> store;
  std::vector<TunedCandidate> waiting;
};

} // namespace tilewright::tune
