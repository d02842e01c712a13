// What the tools say: results on stdout, progress and trouble on stderr.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/Log.h"

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

/// 1536 -> "1.5 KiB".
std::string formatBytes(double bytes);

} // namespace tilewright::tool
