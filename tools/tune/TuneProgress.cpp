#include "TuneProgress.h"
#include "../bench/GpuMonitor.h"
#include "../bench/RunProgress.h"
#include "../bench/Stderr.h"
#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace tilewright::tune {
namespace {

constexpr double kTerminalSeconds = 0.1, kLogSeconds = 3;

std::string barOf(size_t done, size_t total) {
  constexpr size_t width = 20;
  const size_t filled = total ? done * width / total : 0;
  return "[" + std::string(filled, '#') + std::string(width - filled, '.') + "]";
}

size_t columns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 100;
}

} // namespace

TuneProgress::TuneProgress(bool quiet) : terminal(isatty(STDERR_FILENO) != 0), quiet(quiet) {}

TuneProgress::~TuneProgress() {
  if (terminal && !quiet) toStderr("\r\033[K");
}

void TuneProgress::show(const TuneState &s) {
  const double now = bench::monotonicSeconds();
  if (quiet || now - lastShown < (terminal ? kTerminalSeconds : kLogSeconds)) return;
  const std::string counts = fmt::format("{}/{}", s.done, s.total);
  std::string line = s.problems > 1 ? fmt::format("problem {} of {}: ", s.problem + 1, s.problems) : std::string();
  line += fmt::format("{} {} {} {}", s.name, s.stage, terminal ? barOf(s.done, s.total) : "", counts);
  if (!s.best.empty()) line += fmt::format(", best {}", s.best);
  if (s.secondsLeft >= 0) line += fmt::format(", about {} left", bench::formatDuration(s.secondsLeft));
  if (line == lastLine) return;
  lastShown = now;
  lastLine = line;
  if (terminal)
    toStderr("\r\033[K{}", line.substr(0, columns() - 1));
  else
    toStderr("{}\n", line);
  std::fflush(stderr);
}

void TuneProgress::note(const std::string &text) {
  if (quiet) return;
  toStderr("{}{}\n", terminal ? "\r\033[K" : "", text);
  lastShown = 0; // the line above was pushed away
  lastLine.clear();
}

} // namespace tilewright::tune
