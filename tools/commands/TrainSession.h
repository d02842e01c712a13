// What every rank of a training on this machine needs: its place in the job, the machine it computes on, kernels, and
// the network.
#pragma once

#include "tilewright/Compiler.h"
#include "tilewright/Context.h"
#include "tilewright/ThreadPool.h"
#include "tilewright/distributed/engine/ComputeDevice.h"
#include "tilewright/distributed/transport/JobEnvironment.h"
#include "tilewright/distributed/transport/Transport.h"
#include "tilewright/train/GpuBackend.h"
#include <optional>

namespace tilewright::tool {

/// Where a model computes, and how.
struct SessionOptions {
  std::string target = "auto";          ///< "auto": GPUs if every rank has one of its own; "cpu"; "cuda".
  std::optional<ElementType> precision; ///< Of parameters and activations. Default: bf16 on GPUs, fp32 on the CPU.
  Backward attention = Backward::TwoKernel;
  bool tf32 = false;
  bool alone = false; ///< Whatever job this process is of, it is no part of it.
  bool verbose = false;
};

/// An engine's memory and network. Ends before the session that made it.
struct Connection {
  std::unique_ptr<dist::ComputeDevice> device;
  std::unique_ptr<dist::Transport> transport; ///< Uses the device, so it goes first.
};

/// Members are destroyed from the last to the first: what uses another comes after it.
struct TrainSession {
  dist::JobEnvironment job;
  Compiler compiler;
  std::shared_ptr<Context> context;
  std::optional<ThreadPool> pool; ///< Of a model on the CPU.
  std::unique_ptr<train::Backend> backend;
  train::GpuBackend *gpu = nullptr; ///< The backend, if it is a GPU's.
  ElementType precision = ElementType::F32;

  /// Agrees with the other ranks on the target. TILEWRIGHT_THREADS says how many threads this rank computes with on the
  /// CPU; without it ranks of this machine share its hardware threads. On GPUs rank l of a machine takes device l.
  static Expected<std::unique_ptr<TrainSession>> open(const SessionOptions &options);

  /// Meets the job's other ranks: over NCCL on GPUs, over Gloo on the CPU and where there is one rank alone.
  Expected<Connection> connect() { return connectAs(job); }
  /// As the only rank.
  Expected<Connection> connectAlone() { return connectAs({}); }

  bool first() const { return job.rank == 0; }

private:
  Expected<Connection> connectAs(const dist::JobEnvironment &as);
  /// Whether all ranks compute on GPUs; else the context gets this rank's share of the machine's threads.
  Expected<bool> choosesGpu(const SessionOptions &options);
  Status openCpu();
  Status openGpu(const SessionOptions &options);
  Status makeContext(const Environment &environment, bool verbose);
};

} // namespace tilewright::tool
