// Live progress of a tuning on stderr: one line that is rewritten on a terminal; elsewhere lines, a few seconds apart,
// and one for each new best and each failure.
#pragma once

#include <string>

namespace tilewright::tune {

struct TuneState {
  size_t problem = 0, problems = 1; ///< Problem number `problem`, from 0.
  std::string name;                 ///< Of the problem.
  std::string stage;                ///< "compiling", "measuring", "confirming"
  size_t done = 0, total = 0;       ///< Candidates of the problem.
  std::string best;                 ///< "forward 1.08x, dkv 1.21x": best so far against the default.
  double secondsLeft = -1;          ///< Of the whole run; unknown below 0.
};

class TuneProgress {
public:
  explicit TuneProgress(bool quiet);
  ~TuneProgress();
  TuneProgress(const TuneProgress &) = delete;
  TuneProgress &operator=(const TuneProgress &) = delete;

  void show(const TuneState &state);
  /// Something worth a line of its own.
  void note(const std::string &text);

private:
  bool terminal, quiet;
  double lastShown = 0;
  std::string lastLine;
};

} // namespace tilewright::tune
