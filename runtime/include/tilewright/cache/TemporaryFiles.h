// Files that appear whole or not at all: written under a temporary name in their final folder, synced, then renamed.
#pragma once

#include "tilewright/Error.h"
#include <span>
#include <string>
#include <string_view>

namespace tilewright {

/// Creates or replaces `directory`/`name` with the parts' bytes, readable by `mode` (0600, say). On failure nothing of
/// it stays behind. A folder that stands in the way is removed with its content. Errors name the path and the reason.
Status writeFileAtomically(const std::string &directory, const std::string &name,
                           std::span<const std::string_view> parts, unsigned mode);

bool isTemporaryName(std::string_view fileName);

/// True when the process that was writing this temporary file cannot finish it: it ran on this boot of this machine and
/// is gone, or the file is more than an hour old.
bool isStaleTemporary(const std::string &directory, const std::string &fileName);

} // namespace tilewright
