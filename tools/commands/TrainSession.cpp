#include "TrainSession.h"
#include "Console.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include "tilewright/train/CpuBackend.h"
#include <algorithm>

namespace tilewright::tool {

Expected<std::unique_ptr<TrainSession>> TrainSession::open(bool verbose) {
  auto session = std::make_unique<TrainSession>();
  Expected<dist::JobEnvironment> job = dist::JobEnvironment::ofProcess();
  if (!job) return propagate(job);
  session->job = *job;
  Expected<Environment> environment = Environment::ofProcess();
  if (!environment) return propagate(environment);
  if (environment->threads == 0) environment->threads = std::max(1, ThreadPool::hardwareThreads() / job->worldSize);
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
  Expected<std::unique_ptr<dist::Transport>> transport = dist::connectGloo(session->job);
  if (!transport) return propagate(transport);
  session->transport = std::move(*transport);
  return session;
}

} // namespace tilewright::tool
