#include "TrainSession.h"
#include "Console.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include "tilewright/train/CpuBackend.h"
#include <algorithm>
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

/// How many ranks of the job are on this machine. Every rank calls it.
Expected<int> ranksHere(dist::Transport &transport) {
  const std::string own = machineName();
  Expected<std::vector<std::string>> all = transport.exchange(own);
  if (!all) return propagate(all);
  return static_cast<int>(std::ranges::count(*all, own));
}

} // namespace

Expected<std::unique_ptr<TrainSession>> TrainSession::open(bool verbose) {
  auto session = std::make_unique<TrainSession>();
  Expected<dist::JobEnvironment> job = dist::JobEnvironment::ofProcess();
  if (!job) return propagate(job);
  session->job = *job;
  Expected<Environment> environment = Environment::ofProcess();
  if (!environment) return propagate(environment);
  Expected<std::unique_ptr<dist::Transport>> transport = dist::connectGloo(session->job);
  if (!transport) return propagate(transport);
  session->transport = std::move(*transport);
  Expected<int> sharing = ranksHere(*session->transport);
  if (!sharing) return propagate(sharing);
  if (environment->threads == 0) environment->threads = std::max(1, ThreadPool::hardwareThreads() / *sharing);
  session->pool.emplace(environment->threads);

  ContextOptions options;
  options.generator = &session->compiler;
  options.hostCompiler = Compiler::hostCompiler();
  options.log = logToStderr(verbose);
  options.environment = *environment;
  Expected<std::shared_ptr<Context>> context = Context::create(options);
  if (!context) return propagate(context);
  session->context = *context;
  Expected<std::unique_ptr<train::Backend>> backend = train::cpuBackend(session->context, *session->pool);
  if (!backend) return propagate(backend);
  session->backend = std::move(*backend);
  session->device = dist::hostDevice(&*session->pool);
  return session;
}

} // namespace tilewright::tool
