#include "Console.h"

#include "../bench/Stderr.h"
#include "Commands.h"
#include <cstdio>
#include <fmt/format.h>
#include <unistd.h>

namespace tilewright::tool {

int reportError(const Error &error) {
  toStderr("tilewright: {}\n", error.text());
  if (!error.log.empty()) toStderr("\n{}\n", error.log);
  return kError;
}

LogCallback logToStderr(bool verbose) {
  return [verbose](LogLevel level, std::string_view message) {
    if (level == LogLevel::Warning)
      toStderr("tilewright: warning: {}\n", message);
    else if (verbose)
      toStderr("tilewright: {}\n", message);
  };
}

Progress::Progress(std::string_view what) : shown(isatty(STDERR_FILENO)) {
  if (!shown) return;
  toStderr("{} ...", what);
  std::fflush(stderr);
}

Progress::~Progress() {
  if (shown) toStderr("\r\033[K");
}

std::string tuningNote(ScheduleOrigin origin, std::string_view from) {
  if (origin == ScheduleOrigin::Default) return {};
  return origin == ScheduleOrigin::Exact ? "tuned, " : fmt::format("tuned for {}, ", from);
}

std::string formatBytes(double bytes) {
  const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 5; ++unit)
    bytes /= 1024;
  return unit ? fmt::format("{:.1f} {}", bytes, units[unit]) : fmt::format("{:.0f} B", bytes);
}

} // namespace tilewright::tool
