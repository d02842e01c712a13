// Collectives over TCP between host memories, on Gloo's unbound buffers.
//
// Every reduction adds in the order of ranks, each element where its owner is, in fp32 (fp64 for fp64), rounded once:
// the same bits for any bucket, segment or strategy. Chunks travel directly between each pair of ranks, all pairs at
// once, in segments, and cost what a ring costs: 2 (N-1)/N of the bytes for an all-reduce, half for each of its halves.
#pragma once

#include "tilewright/distributed/transport/JobEnvironment.h"
#include "tilewright/distributed/transport/Transport.h"

namespace tilewright::dist {

/// Meets the other ranks, connects to each, and lets each prove the job's token on its connection. A rank that dies is
/// noticed within milliseconds, one that stops or hangs after job.timeout; every survivor's call then fails and names
/// it. Destruction says goodbye to the other ranks first, so that nothing on its way is lost.
Expected<std::unique_ptr<Transport>> connectGloo(const JobEnvironment &job);

} // namespace tilewright::dist
