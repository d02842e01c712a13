// What every rank of a training on this machine needs: its place in the job, the network, the host's cores and kernels.
#pragma once

#include "tilewright/Compiler.h"
#include "tilewright/Context.h"
#include "tilewright/ThreadPool.h"
#include "tilewright/distributed/engine/ComputeDevice.h"
#include "tilewright/distributed/transport/JobEnvironment.h"
#include "tilewright/distributed/transport/Transport.h"
#include "tilewright/train/Backend.h"
#include <optional>

namespace tilewright::tool {

/// Members are destroyed from the last to the first: what uses another comes after it.
struct TrainSession {
  dist::JobEnvironment job;
  Compiler compiler;
  std::shared_ptr<Context> context;
  std::optional<ThreadPool> pool;
  std::unique_ptr<train::Backend> backend;
  std::unique_ptr<dist::ComputeDevice> device;
  std::unique_ptr<dist::Transport> transport;

  /// Meets the other ranks. TILEWRIGHT_THREADS says how many threads this rank computes with; without it ranks of this
  /// machine share its hardware threads.
  static Expected<std::unique_ptr<TrainSession>> open(bool verbose);

  bool first() const { return job.rank == 0; }
};

} // namespace tilewright::tool
