// One outcome for all ranks: who failed, and why.
#pragma once

#include "tilewright/distributed/transport/Transport.h"

namespace tilewright::dist {

/// Called by all ranks with their own outcome. Success if all succeeded; otherwise every rank gets the error of the
/// first rank that failed, which it names.
Status agree(Transport &transport, Status own);

} // namespace tilewright::dist
