// What the tools say: results on stdout, progress and trouble on stderr.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/Log.h"
#include "tilewright/tuning/ScheduleChoice.h"

namespace tilewright::tool {

/// Prints "tilewright: <error>" with its hint, and the log below it; returns kError.
int reportError(const Error &error);

/// Passes the library's warnings to stderr, and its progress when `verbose`.
LogCallback logToStderr(bool verbose);

/// One line of progress on stderr while something takes long: shown on a terminal only, erased when done.
class Progress {
public:
  explicit Progress(std::string_view what);
  ~Progress();
  Progress(const Progress &) = delete;
  Progress &operator=(const Progress &) = delete;

private:
  bool shown;
};

/// "tuned, " or "tuned for b2 h16 q1024 kv1024, "; empty for a default.
std::string tuningNote(ScheduleOrigin origin, std::string_view from);

/// 1536 -> "1.5 KiB".
std::string formatBytes(double bytes);

} // namespace tilewright::tool
