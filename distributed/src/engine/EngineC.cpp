#include "tilewright/Environment.h"
#include "tilewright/distributed/checkpoint/Checkpoint.h"
#include "tilewright/distributed/engine/tilewright_engine.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include "tilewright/distributed/transport/NcclTransport.h"
#include <algorithm>
#include <cstring>
#include <fmt/format.h>

using namespace tilewright;
using namespace tilewright::dist;

struct tw_engine {
  std::unique_ptr<ComputeDevice> device;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Engine> engine; ///< Goes first.
};

namespace {

thread_local std::string lastError;

int outcome(const Status &status) {
  if (status) return 0;
  lastError = status.error().text();
  return -1;
}
int refuse(std::string message) { return outcome(fail(Stage::Input, std::move(message))); }

ElementType typeOf(tw_element_type type) { return type == TW_BFLOAT16 ? ElementType::BF16 : ElementType::F32; }

/// A struct of a caller that may know fewer fields; false if it is none.
template <class T> bool take(const T *given, T &options) {
  std::memset(&options, 0, sizeof(options));
  if (!given) return true;
  if (given->struct_size < sizeof(size_t) || given->struct_size > sizeof(T)) return false;
  std::memcpy(&options, given, given->struct_size);
  return true;
}

Status connect(tw_engine &made, const tw_engine_options &options, const JobEnvironment &job) {
  if (options.backend == TW_BACKEND_GLOO) {
    made.device = hostDevice();
    auto transport = connectGloo(job);
    if (!transport) return propagate(transport);
    made.transport = std::move(*transport);
    return {};
  }
  auto environment = Environment::ofProcess();
  if (!environment) return propagate(environment);
  auto driver = cuda::Driver::open(environment->cudaDriver);
  if (!driver) return propagate(driver);
  auto compiler = cuda::Nvrtc::open(
      {environment->nvrtc, environment->libraryPath, environment->cudaHome, (*driver)->version() / 1000});
  if (!compiler) return propagate(compiler);
  auto gpu = cuda::Device::open(*driver, job.localRank);
  if (!gpu) return propagate(gpu);
  auto device = CudaDevice::create(*gpu, **compiler, options.host_stream);
  if (!device) return propagate(device);
  auto transport = connectNccl(job, **device, {environment->nccl});
  made.device = std::move(*device);
  if (!transport) return propagate(transport);
  made.transport = std::move(*transport);
  return {};
}

Status create(const tw_engine_options &options, const tw_parameter *parameters, int32_t count, tw_engine &made) {
  StrategyOptions strategy;
  if (options.strategy) {
    Expected<Strategy> kind = parseStrategy(options.strategy);
    if (!kind) return propagate(kind);
    strategy.strategy = *kind;
  }
  if (options.bucket_bytes) strategy.bucketBytes = options.bucket_bytes;
  if (options.accumulation) strategy.accumulation = options.accumulation;
  strategy.parameterType = typeOf(options.parameter_type);
  strategy.gradientType = typeOf(options.gradient_type);
  strategy.reductionType = typeOf(options.reduction_type);
  strategy.globalNorm = !options.no_global_norm;
  ParameterList list;
  for (int32_t i = 0; i < count; ++i) {
    const tw_parameter &p = parameters[i];
    if (!p.name || p.rank < 0 || (p.rank > 0 && !p.shape))
      return fail(Stage::Input, fmt::format("parameter {}: expected a name and a shape", i));
    list.push_back({p.name, std::vector<int64_t>(p.shape, p.shape + p.rank), p.weight_decay});
  }
  Expected<JobEnvironment> job = JobEnvironment::ofProcess();
  if (!job) return propagate(job);
  if (Status s = connect(made, options, *job); !s) return s;
  auto engine = Engine::create(list, strategy, *made.transport, *made.device);
  if (!engine) return propagate(engine);
  made.engine = std::move(*engine);
  return {};
}

bool has(const tw_engine *engine, int32_t i) { return engine && i >= 0 && i < engine->engine->parameters(); }
int noParameter(int32_t i) { return refuse(fmt::format("engine: there is no parameter {}", i)); }

} // namespace

extern "C" {

int tw_engine_create(const tw_engine_options *given, const tw_parameter *parameters, int32_t count,
                     tw_engine **engine) {
  tw_engine_options options;
  if (!engine || count < 0 || (count > 0 && !parameters)) return refuse("tw_engine_create: a pointer is null");
  if (!take(given, options)) return refuse("tw_engine_create: struct_size is not this version's or an older one's");
  auto made = std::make_unique<tw_engine>();
  if (Status s = create(options, parameters, count, *made); !s) return outcome(s);
  *engine = made.release();
  return 0;
}

void tw_engine_destroy(tw_engine *engine) { delete engine; }

int32_t tw_engine_rank(const tw_engine *engine) { return engine->transport->rank(); }
int32_t tw_engine_world_size(const tw_engine *engine) { return engine->transport->worldSize(); }
int64_t tw_engine_updates(const tw_engine *engine) { return engine->engine->updates(); }

void *tw_engine_parameter(tw_engine *engine, int32_t i) {
  if (has(engine, i)) return engine->engine->parameter(i).data;
  noParameter(i);
  return nullptr;
}
int tw_engine_start(tw_engine *engine) { return outcome(engine->engine->start()); }

int tw_engine_wait_parameter(tw_engine *engine, int32_t i) {
  return has(engine, i) ? outcome(engine->engine->waitParameter(i)) : noParameter(i);
}
int tw_engine_gradient(tw_engine *engine, int32_t i, tw_gradient_view *view) {
  if (!has(engine, i)) return noParameter(i);
  const GradientView found = engine->engine->gradient(i);
  *view = {found.data, found.elements, found.type == ElementType::BF16 ? TW_BFLOAT16 : TW_FLOAT32, found.add};
  return 0;
}
int tw_engine_grad_ready(tw_engine *engine, int32_t i) {
  return has(engine, i) ? outcome(engine->engine->gradReady(i)) : noParameter(i);
}
int tw_engine_end_micro_batch(tw_engine *engine) { return outcome(engine->engine->endMicroBatch()); }

int tw_engine_finish_step(tw_engine *engine, double tokens, const tw_step_options *given, tw_step_report *report) {
  tw_step_options options;
  if (!take(given, options))
    return refuse("tw_engine_finish_step: struct_size is not this version's or an older one's");
  StepSettings settings;
  auto set = [](double &field, double value) {
    if (value != 0) field = value;
  };
  set(settings.learningRate, options.learning_rate);
  set(settings.beta1, options.beta1);
  set(settings.beta2, options.beta2);
  set(settings.epsilon, options.epsilon);
  settings.maxNorm = options.max_norm;
  settings.nonFinite = static_cast<StepSettings::NonFinite>(options.non_finite);
  Expected<StepReport> done = engine->engine->finishStep(tokens, settings);
  if (!done) return outcome(propagate(done));
  if (report) *report = {done->tokens, done->norm, done->skipped};
  return 0;
}
int tw_engine_synchronize(tw_engine *engine) { return outcome(engine->engine->synchronize()); }

int tw_engine_save(tw_engine *engine, const char *directory, int32_t keep) {
  if (!directory) return refuse("tw_engine_save: no directory");
  return outcome(saveCheckpoint(*engine->engine, {directory, {}, keep}).map([](const std::string &) {}));
}
int tw_engine_load(tw_engine *engine, const char *path) {
  if (!path) return refuse("tw_engine_load: no path");
  return outcome(loadCheckpoint(*engine->engine, path).map([](const CheckpointSummary &) {}));
}

const char *tw_engine_last_error(void) { return lastError.c_str(); }
}
