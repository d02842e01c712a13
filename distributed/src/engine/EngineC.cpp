#include "tilewright/Environment.h"
#include "tilewright/distributed/checkpoint/Checkpoint.h"
#include "tilewright/distributed/engine/tilewright_engine.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include "tilewright/distributed/transport/NcclTransport.h"
#include <cmath>
#include <cstring>
#include <exception>
#include <fmt/format.h>
#include <tuple>

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

/// No exception crosses the border to C: what the library itself does not catch is lack of memory.
template <class Body> int guarded(Body body) {
  try {
    return body();
  } catch (const std::exception &error) {
    try {
      return refuse(fmt::format("engine: {}", error.what()));
    } catch (const std::exception &) {
      lastError.clear();
      return -1;
    }
  }
}

/// `body` with the engine; an error if there is none.
template <class Engine, class Body> int with(Engine *engine, Body body) {
  return guarded([&] { return engine ? body(*engine) : refuse("engine: the engine is null"); });
}

Expected<ElementType> typeOf(const char *what, int type) {
  if (type == TW_FLOAT32) return ElementType::F32;
  if (type == TW_BFLOAT16) return ElementType::BF16;
  return fail(Stage::Input, fmt::format("{}: expected TW_FLOAT32 or TW_BFLOAT16, found {}", what, type));
}

bool isSizeOf(size_t given, size_t known) { return given >= sizeof(size_t) && given <= known; }

/// A struct of a caller that may know fewer fields, over the defaults in `options`; false if it is none.
template <class T> bool take(const T *given, T &options) {
  if (!given) return true;
  if (!isSizeOf(given->struct_size, sizeof(T))) return false;
  std::memcpy(&options, given, given->struct_size);
  return true;
}

tw_step_options stepDefaults() {
  const StepSettings settings;
  return {sizeof(tw_step_options), settings.learningRate, settings.beta1,        settings.beta2,
          settings.epsilon,        settings.maxNorm,      TW_NON_FINITE_CONTINUE};
}

Expected<StepSettings> settingsOf(const tw_step_options &options) {
  StepSettings settings;
  settings.learningRate = options.learning_rate;
  settings.beta1 = options.beta1;
  settings.beta2 = options.beta2;
  settings.epsilon = options.epsilon;
  settings.maxNorm = options.max_norm;
  auto refused = [](const char *field, const char *expected, double found) {
    return fail(Stage::Input, fmt::format("tw_step_options: {}: expected {}, found {}", field, expected, found));
  };
  if (!std::isfinite(options.learning_rate)) return refused("learning_rate", "a number", options.learning_rate);
  if (!(options.beta1 >= 0 && options.beta1 < 1)) return refused("beta1", "0 or more and less than 1", options.beta1);
  if (!(options.beta2 >= 0 && options.beta2 < 1)) return refused("beta2", "0 or more and less than 1", options.beta2);
  if (!(options.epsilon >= 0)) return refused("epsilon", "0 or more", options.epsilon);
  if (!(options.max_norm >= 0)) return refused("max_norm", "0 or more", options.max_norm);
  switch (static_cast<int>(options.non_finite)) {
  case TW_NON_FINITE_CONTINUE:
    settings.nonFinite = StepSettings::NonFinite::Continue;
    break;
  case TW_NON_FINITE_SKIP:
    settings.nonFinite = StepSettings::NonFinite::Skip;
    break;
  case TW_NON_FINITE_STOP:
    settings.nonFinite = StepSettings::NonFinite::Stop;
    break;
  default:
    return refused("non_finite", "a tw_non_finite", static_cast<int>(options.non_finite));
  }
  return settings;
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
  for (auto [what, given, type] : {std::tuple{"parameter_type", options.parameter_type, &strategy.parameterType},
                                   {"gradient_type", options.gradient_type, &strategy.gradientType},
                                   {"reduction_type", options.reduction_type, &strategy.reductionType}}) {
    Expected<ElementType> read = typeOf(what, given);
    if (!read) return propagate(read);
    *type = *read;
  }
  if (options.backend != TW_BACKEND_GLOO && options.backend != TW_BACKEND_NCCL)
    return fail(Stage::Input, fmt::format("backend: expected TW_BACKEND_GLOO or TW_BACKEND_NCCL, found {}",
                                          static_cast<int>(options.backend)));
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

int noParameter(int32_t i) { return refuse(fmt::format("engine: there is no parameter {}", i)); }

/// `body` with the engine, if it has a parameter i.
template <class Body> int withParameter(tw_engine *engine, int32_t i, Body body) {
  return with(engine, [&](tw_engine &known) {
    return i >= 0 && i < known.engine->parameters() ? body(*known.engine) : noParameter(i);
  });
}

} // namespace

extern "C" {

int tw_engine_create(const tw_engine_options *given, const tw_parameter *parameters, int32_t count,
                     tw_engine **engine) {
  return guarded([&] {
    tw_engine_options options{};
    if (!engine || count < 0 || (count > 0 && !parameters)) return refuse("tw_engine_create: a pointer is null");
    *engine = nullptr;
    if (!take(given, options)) return refuse("tw_engine_create: struct_size is not this version's or an older one's");
    auto made = std::make_unique<tw_engine>();
    if (Status s = create(options, parameters, count, *made); !s) return outcome(s);
    *engine = made.release();
    return 0;
  });
}

void tw_engine_destroy(tw_engine *engine) { delete engine; }

int32_t tw_engine_rank(const tw_engine *engine) {
  return with(engine, [](const tw_engine &known) { return known.transport->rank(); });
}
int32_t tw_engine_world_size(const tw_engine *engine) {
  return with(engine, [](const tw_engine &known) { return known.transport->worldSize(); });
}
int64_t tw_engine_updates(const tw_engine *engine) {
  int64_t updates = -1;
  (void)with(engine, [&](const tw_engine &known) { return updates = known.engine->updates(), 0; });
  return updates;
}

void *tw_engine_parameter(tw_engine *engine, int32_t i) {
  void *data = nullptr;
  (void)withParameter(engine, i, [&](Engine &known) { return data = known.parameter(i).data, 0; });
  return data;
}
int tw_engine_start(tw_engine *engine) {
  return with(engine, [](tw_engine &known) { return outcome(known.engine->start()); });
}

int tw_engine_wait_parameter(tw_engine *engine, int32_t i) {
  return withParameter(engine, i, [&](Engine &known) { return outcome(known.waitParameter(i)); });
}
int tw_engine_gradient(tw_engine *engine, int32_t i, tw_gradient_view *view) {
  return withParameter(engine, i, [&](Engine &known) {
    if (!view) return refuse("tw_engine_gradient: the view is null");
    const GradientView found = known.gradient(i);
    *view = {found.data, found.elements, found.type == ElementType::BF16 ? TW_BFLOAT16 : TW_FLOAT32, found.add};
    return 0;
  });
}
int tw_engine_grad_ready(tw_engine *engine, int32_t i) {
  return withParameter(engine, i, [&](Engine &known) { return outcome(known.gradReady(i)); });
}
int tw_engine_end_micro_batch(tw_engine *engine) {
  return with(engine, [](tw_engine &known) { return outcome(known.engine->endMicroBatch()); });
}

void tw_step_options_init(tw_step_options *options, size_t size) {
  if (!options || !isSizeOf(size, sizeof(*options))) return;
  tw_step_options defaults = stepDefaults();
  defaults.struct_size = size;
  std::memcpy(options, &defaults, size);
}

int tw_engine_finish_step(tw_engine *engine, double tokens, const tw_step_options *given, tw_step_report *report) {
  return with(engine, [&](tw_engine &known) {
    tw_step_options options = stepDefaults();
    if (!take(given, options) || (report && !isSizeOf(report->struct_size, sizeof(*report))))
      return refuse("tw_engine_finish_step: struct_size is not this version's or an older one's");
    Expected<StepSettings> settings = settingsOf(options);
    if (!settings) return outcome(propagate(settings));
    Expected<StepReport> done = known.engine->finishStep(tokens, *settings);
    if (!done) return outcome(propagate(done));
    if (!report) return 0;
    const tw_step_report full{report->struct_size, done->tokens, done->norm, done->skipped};
    std::memcpy(report, &full, report->struct_size);
    return 0;
  });
}
int tw_engine_synchronize(tw_engine *engine) {
  return with(engine, [](tw_engine &known) { return outcome(known.engine->synchronize()); });
}

int tw_engine_save(tw_engine *engine, const char *directory, int32_t keep) {
  return with(engine, [&](tw_engine &known) {
    if (!directory) return refuse("tw_engine_save: no directory");
    return outcome(saveCheckpoint(*known.engine, {directory, {}, keep}).map([](const std::string &) {}));
  });
}
int tw_engine_load(tw_engine *engine, const char *path) {
  return with(engine, [&](tw_engine &known) {
    if (!path) return refuse("tw_engine_load: no path");
    return outcome(loadCheckpoint(*known.engine, path).map([](const CheckpointSummary &) {}));
  });
}

const char *tw_engine_last_error(void) { return lastError.c_str(); }
}
