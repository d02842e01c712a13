#include "TrainSession.h"
#include "../bench/Stderr.h"
#include "Console.h"
#include "tilewright/distributed/engine/CudaDevice.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include "tilewright/distributed/transport/NcclTransport.h"
#include "tilewright/train/CpuBackend.h"
#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>

namespace tilewright::tool {
namespace {

/// The same for all ranks that share hardware threads, whatever containers call their host.
std::string machineName() {
  std::string name;
  if (std::ifstream("/proc/sys/kernel/random/boot_id") >> name) return name;
  char host[256] = {};
  return gethostname(host, sizeof(host) - 1) == 0 ? host : "";
}

struct Peers {
  int64_t withGpu = 0; ///< Ranks that have a GPU of their own.
  int64_t here = 0;    ///< Ranks on this machine.
};

/// What the ranks of a job tell each other before they know on what they compute.
Expected<Peers> askPeers(const dist::JobEnvironment &job, bool hasGpu) {
  const std::string own = machineName();
  Expected<std::unique_ptr<dist::Transport>> transport = dist::connectGloo(job);
  if (!transport) return propagate(transport);
  Expected<std::vector<std::string>> all = (*transport)->exchange((hasGpu ? "gpu " : "cpu ") + own);
  if (!all) return propagate(all);
  Peers peers;
  for (const std::string &text : *all) {
    peers.withGpu += text.starts_with("gpu ");
    peers.here += text.substr(4) == own;
  }
  return peers;
}

} // namespace

Expected<std::unique_ptr<TrainSession>> TrainSession::open(const SessionOptions &options) {
  if (options.target != "auto" && options.target != "cpu" && options.target != "cuda")
    return fail(Stage::Input, fmt::format("--target: expected auto, cpu or cuda, found '{}'", options.target));
  auto session = std::make_unique<TrainSession>();
  if (!options.alone) {
    Expected<dist::JobEnvironment> job = dist::JobEnvironment::ofProcess();
    if (!job) return propagate(job);
    session->job = *job;
  }
  Expected<Environment> environment = Environment::ofProcess();
  if (!environment) return propagate(environment);
  if (Status status = session->makeContext(*environment, options.verbose); !status) return propagate(status);
  Expected<bool> onGpu = session->choosesGpu(options);
  if (!onGpu) return propagate(onGpu);
  session->precision = options.precision.value_or(*onGpu ? ElementType::BF16 : ElementType::F32);
  Status status = *onGpu ? session->openGpu(options) : session->openCpu();
  if (!status) return propagate(status);
  return session;
}

Status TrainSession::makeContext(const Environment &environment, bool verbose) {
  ContextOptions options;
  options.generator = &compiler;
  options.hostCompiler = Compiler::hostCompiler();
  options.log = logToStderr(verbose);
  options.environment = environment;
  Expected<std::shared_ptr<Context>> made = Context::create(options);
  if (!made) return propagate(made);
  context = *made;
  return {};
}

Expected<bool> TrainSession::choosesGpu(const SessionOptions &options) {
  bool found = false;
  if (options.target != "cpu") {
    auto device = context->device(job.localRank);
    found = device.has_value();
    if (options.target == "cuda") {
      if (found) return true;
      std::string &hint = device.error().hint;
      hint += (hint.empty() ? "" : "; ") +
              std::string("every rank of a machine needs a GPU of its own; --target cpu needs none");
      return propagate(device);
    }
  }
  Expected<Peers> peers = askPeers(job, found);
  if (!peers) return propagate(peers);
  if (peers->withGpu == job.worldSize) return true;
  if (peers->withGpu > 0 && first())
    toStderr("target      cpu: {} of {} ranks have a GPU of their own\n", peers->withGpu, job.worldSize);
  Environment environment = context->environment();
  if (environment.threads) return false;
  environment.threads = std::max(1, ThreadPool::hardwareThreads() / static_cast<int>(peers->here));
  if (Status status = makeContext(environment, options.verbose); !status) return propagate(status);
  return false;
}

Status TrainSession::openCpu() {
  pool.emplace(context->threads());
  Expected<std::unique_ptr<train::Backend>> made = train::cpuBackend(context, *pool);
  if (!made) return propagate(made);
  backend = std::move(*made);
  return {};
}

Status TrainSession::openGpu(const SessionOptions &options) {
  Expected<std::unique_ptr<train::GpuBackend>> made =
      train::GpuBackend::create(context, {job.localRank, precision, options.tf32, options.attention});
  if (!made) return propagate(made);
  gpu = made->get();
  backend = std::move(*made);
  return {};
}

Expected<Connection> TrainSession::connectAs(const dist::JobEnvironment &as) {
  Connection made;
  if (!gpu) {
    made.device = dist::hostDevice(&*pool);
  } else {
    Expected<std::unique_ptr<dist::CudaDevice>> device =
        dist::CudaDevice::create(*context, job.localRank, gpu->stream());
    if (!device) return propagate(device);
    if (as.worldSize > 1) {
      auto transport = dist::connectNccl(as, **device, {context->environment().nccl});
      if (!transport) return propagate(transport);
      made.transport = std::move(*transport);
    }
    made.device = std::move(*device);
  }
  if (!made.transport) {
    Expected<std::unique_ptr<dist::Transport>> transport = dist::connectGloo(as);
    if (!transport) return propagate(transport);
    made.transport = std::move(*transport);
  }
  return made;
}

} // namespace tilewright::tool
