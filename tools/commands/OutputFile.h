// Files that a long run writes at its end: checked before it begins, replaced whole.
#pragma once

#include "tilewright/Error.h"

namespace tilewright::tool {

/// Refuses a path that could not be written, so that a long run does not end with nowhere to put its results. `option`
/// is for the error. An empty path is no file.
Status checkWritable(const char *option, const std::string &path);

/// Writes beside the file and renames: readers see the old text or the new one.
Status writeText(const std::string &path, const std::string &text);

/// "2026-01-31 12:00:00", local time.
std::string localTime();

} // namespace tilewright::tool
