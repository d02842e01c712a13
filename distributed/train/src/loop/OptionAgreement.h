// Before a training starts: whether all ranks were started with the same options.
#pragma once

#include "tilewright/distributed/transport/Transport.h"
#include <map>

namespace tilewright::train {

/// Called by all ranks with their own values by name. If a rank has another value than rank 0, or lacks one, every rank
/// gets the same error: which rank, the first such name, and both values.
Status agreeOnOptions(dist::Transport &transport, const std::map<std::string, std::string> &own);

} // namespace tilewright::train
