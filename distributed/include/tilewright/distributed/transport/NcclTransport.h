// Collectives between GPUs over NCCL, on the communication lane of a CudaDevice.
//
// Ranks meet, prove the job's token and notice lost ranks over TCP, as in GlooTransport.h: NCCL itself cannot tell who
// is gone. Its communicators do not block; a thread watches the work that was enqueued, and when NCCL reports an error,
// a rank is lost, or nothing moves for the job's timeout, it aborts the communicator, so that every wait for the stream
// ends, and tells the other ranks.
//
// Sums are NCCL's: the same bits in every run with the same sizes, not for other buckets or strategies; bf16 is rounded
// at each hop of its ring, so once between two ranks.
#pragma once

#include "tilewright/distributed/engine/CudaDevice.h"
#include "tilewright/distributed/transport/JobEnvironment.h"
#include "tilewright/distributed/transport/Transport.h"

namespace tilewright::dist {

struct NcclOptions {
  std::string library; ///< A file, or empty to search for it: TILEWRIGHT_NCCL.
};

/// Every rank has a GPU of its own, `device`, which must outlive the transport.
Expected<std::unique_ptr<Transport>> connectNccl(const JobEnvironment &job, CudaDevice &device,
                                                 const NcclOptions &options = {});

} // namespace tilewright::dist
