// Progress of a run of many cells on stderr: one line that is rewritten on a terminal, a line a cell elsewhere.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tilewright::bench {

class RunProgress {
public:
  explicit RunProgress(size_t cells);
  ~RunProgress();
  RunProgress(const RunProgress &) = delete;
  RunProgress &operator=(const RunProgress &) = delete;

  /// Cell `index`, from 0, begins. Time left is guessed from the cells done so far.
  void begin(size_t index, std::string_view name);
  /// What the cell found, shown at its end where lines are not rewritten.
  void end(std::string_view finding);

private:
  size_t cells;
  bool terminal;
  double started;
};

/// "45 s", "2 min 05 s".
std::string formatDuration(double seconds);

} // namespace tilewright::bench
