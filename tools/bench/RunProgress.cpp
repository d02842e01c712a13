#include "RunProgress.h"
#include "GpuMonitor.h"
#include "Stderr.h"
#include <cstdio>
#include <fmt/format.h>
#include <unistd.h>

namespace tilewright::bench {

std::string formatDuration(double seconds) {
  const auto whole = static_cast<long long>(seconds + 0.5);
  return whole < 90 ? fmt::format("{} s", whole) : fmt::format("{} min {:02} s", whole / 60, whole % 60);
}

RunProgress::RunProgress(size_t cells)
    : cells(cells), terminal(isatty(STDERR_FILENO) != 0), started(monotonicSeconds()) {}

RunProgress::~RunProgress() {
  if (terminal) toStderr("\r\033[K");
}

void RunProgress::begin(size_t index, std::string_view name) {
  std::string line = fmt::format("cell {} of {}: {}", index + 1, cells, name);
  if (index > 0) {
    const double each = (monotonicSeconds() - started) / static_cast<double>(index);
    line += fmt::format(", about {} left", formatDuration(each * static_cast<double>(cells - index)));
  }
  if (terminal)
    toStderr("\r\033[K{} ...", line);
  else
    toStderr("{}", line);
  std::fflush(stderr);
}

void RunProgress::end(std::string_view finding) {
  if (!terminal) toStderr(": {}\n", finding);
}

} // namespace tilewright::bench
