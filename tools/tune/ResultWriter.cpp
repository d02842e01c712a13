#include "ResultWriter.h"
#include "../bench/GpuMonitor.h"
#include <fmt/format.h>
#include <unistd.h>

namespace tilewright::tune {

bool ResultWriter::flush() {
  if (waiting.empty()) return true;
  if (Status status = store->put(waiting); !status) {
    store->warnOnce("write",
                    fmt::format("{}; measurements are kept in memory and written later", status.error().message));
    return false;
  }
  waiting.clear();
  return true;
}

void ResultWriter::add(TunedCandidate candidate) {
  waiting.push_back(std::move(candidate));
  flush();
}

void ResultWriter::finish(double seconds) {
  constexpr useconds_t kPause = 200000;
  for (const double until = bench::monotonicSeconds() + seconds; !flush() && bench::monotonicSeconds() < until;)
    usleep(kPause);
}

} // namespace tilewright::tune
