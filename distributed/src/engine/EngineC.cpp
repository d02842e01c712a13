#include "c/SizedStruct.h"
#include "tilewright/distributed/checkpoint/Checkpoint.h"
#include "tilewright/distributed/engine/tilewright_engine.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include "tilewright/distributed/transport/NcclTransport.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <new>
#include <string_view>

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

/// Runs a call of C, which knows no exceptions: what a library throws for want of memory or threads becomes an error,
/// and the call returns `failed`.
template <class Result, class Call> Result guarded(Result failed, Call call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc &) {
    lastError = "out of memory"; // short enough to need none
  } catch (const std::exception &error) {
    const std::string_view reason = error.what();
    lastError.assign(reason.substr(0, lastError.capacity()));
  } catch (...) {
    lastError = "unknown error";
  }
  return failed;
}

/// guarded(), for an engine that must be there.
template <class Result, class Call> Result withHandle(const tw_engine *engine, Result failed, Call call) noexcept {
  return guarded(failed, [&]() -> Result {
    if (engine) return call();
    refuse("engine: expected one that tw_engine_create made, found null");
    return failed;
  });
}
template <class Call> int withEngine(const tw_engine *engine, Call call) noexcept {
  return withHandle(engine, -1, [&] { return outcome(call(*engine->engine)); });
}
/// For a parameter that must be there.
template <class Call> int withParameter(const tw_engine *engine, int32_t i, Call call) noexcept {
  return withEngine(engine, [&](Engine &e) -> Status {
    if (i < 0 || i >= e.parameters())
      return fail(Stage::Input, fmt::format("engine: there is no parameter {}; it has {}", i, e.parameters()));
    return call(e);
  });
}

Status readType(const char *field, int32_t value, ElementType &type) {
  if (value != TW_FLOAT32 && value != TW_BFLOAT16)
    return fail(Stage::Input, fmt::format("{}: expected TW_FLOAT32 ({}) or TW_BFLOAT16 ({}), found {}", field,
                                          static_cast<int>(TW_FLOAT32), static_cast<int>(TW_BFLOAT16), value));
  type = value == TW_BFLOAT16 ? ElementType::BF16 : ElementType::F32;
  return {};
}

tw_step_options defaultStep() {
  const StepSettings settings;
  return {sizeof(tw_step_options), settings.learningRate, settings.beta1,        settings.beta2,
          settings.epsilon,        settings.maxNorm,      TW_NON_FINITE_CONTINUE};
}

Expected<StepSettings> settingsOf(const tw_step_options &o) {
  const char *hint = "tw_step_options_init() sets all defaults";
  auto refuse = [&](const char *field, const char *expected, double found) {
    return fail(Stage::Input, fmt::format("tw_step_options.{}: expected {}, found {}", field, expected, found), hint);
  };
  // Written so that NaN is refused.
  if (!(o.learning_rate >= 0 && std::isfinite(o.learning_rate)))
    return refuse("learning_rate", "0 or more", o.learning_rate);
  if (!(o.beta1 >= 0 && o.beta1 < 1)) return refuse("beta1", "0 to below 1", o.beta1);
  if (!(o.beta2 >= 0 && o.beta2 < 1)) return refuse("beta2", "0 to below 1", o.beta2);
  if (!(o.epsilon > 0 && std::isfinite(o.epsilon))) return refuse("epsilon", "more than 0", o.epsilon);
  if (!(o.max_norm >= 0)) return refuse("max_norm", "0 or more", o.max_norm);
  if (o.non_finite < TW_NON_FINITE_CONTINUE || o.non_finite > TW_NON_FINITE_STOP)
    return refuse("non_finite", "0 to 2, a tw_non_finite", o.non_finite);
  StepSettings settings{o.learning_rate, o.beta1, o.beta2, o.epsilon, o.max_norm};
  settings.nonFinite = static_cast<StepSettings::NonFinite>(o.non_finite);
  return settings;
}
static_assert(TW_NON_FINITE_CONTINUE == static_cast<int>(StepSettings::NonFinite::Continue) &&
              TW_NON_FINITE_SKIP == static_cast<int>(StepSettings::NonFinite::Skip) &&
              TW_NON_FINITE_STOP == static_cast<int>(StepSettings::NonFinite::Stop));

Status connect(tw_engine &made, const tw_engine_options &options, const JobEnvironment &job) {
  if (options.backend == TW_BACKEND_GLOO) {
    made.device = hostDevice();
    auto transport = connectGloo(job);
    if (!transport) return propagate(transport);
    made.transport = std::move(*transport);
    return {};
  }
  auto context = Context::create({});
  if (!context) return propagate(context);
  auto device = CudaDevice::create(**context, job.localRank, options.host_stream);
  if (!device) return propagate(device);
  auto transport = connectNccl(job, **device, {(*context)->environment().nccl});
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
  if (options.accumulation) strategy.accumulation = options.accumulation;
  if (Status s = readType("parameter_type", options.parameter_type, strategy.parameterType); !s) return s;
  if (Status s = readType("gradient_type", options.gradient_type, strategy.gradientType); !s) return s;
  if (Status s = readType("reduction_type", options.reduction_type, strategy.reductionType); !s) return s;
  if (options.backend != TW_BACKEND_GLOO && options.backend != TW_BACKEND_NCCL)
    return fail(Stage::Input,
                fmt::format("backend: expected TW_BACKEND_GLOO ({}) or TW_BACKEND_NCCL ({}), found {}",
                            static_cast<int>(TW_BACKEND_GLOO), static_cast<int>(TW_BACKEND_NCCL), options.backend));
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
  strategy.bucketBytes = options.bucket_bytes ? options.bucket_bytes : made.transport->usualBucketBytes();
  auto engine = Engine::create(list, strategy, *made.transport, *made.device);
  if (!engine) return propagate(engine);
  made.engine = std::move(*engine);
  return {};
}

} // namespace

extern "C" {

int tw_step_options_init(tw_step_options *options, size_t struct_size) {
  return guarded(-1, [&] {
    if (!options || struct_size < sizeof(size_t) || struct_size > sizeof(*options))
      return refuse(fmt::format("tw_step_options_init: expected a struct of {} bytes, found {} of {}", sizeof(*options),
                                options ? "one" : "null", struct_size));
    const tw_step_options defaults = defaultStep();
    std::memcpy(options, &defaults, struct_size);
    options->struct_size = struct_size;
    return 0;
  });
}

int tw_engine_create(const tw_engine_options *given, const tw_parameter *parameters, int32_t count,
                     tw_engine **engine) {
  return guarded(-1, [&] {
    if (!engine || count < 0 || (count > 0 && !parameters)) return refuse("tw_engine_create: a pointer is null");
    tw_engine_options options;
    std::memset(&options, 0, sizeof(options));
    if (Status s = c::take("tw_engine_options", given, options); !s) return outcome(s);
    auto made = std::make_unique<tw_engine>();
    if (Status s = create(options, parameters, count, *made); !s) return outcome(s);
    *engine = made.release();
    return 0;
  });
}

void tw_engine_destroy(tw_engine *engine) { delete engine; }

int32_t tw_engine_rank(const tw_engine *engine) {
  return withHandle(engine, int32_t{-1}, [&] { return engine->transport->rank(); });
}
int32_t tw_engine_world_size(const tw_engine *engine) {
  return withHandle(engine, int32_t{-1}, [&] { return engine->transport->worldSize(); });
}
int64_t tw_engine_updates(const tw_engine *engine) {
  return withHandle(engine, int64_t{-1}, [&] { return engine->engine->updates(); });
}

void *tw_engine_parameter(tw_engine *engine, int32_t i) {
  void *data = nullptr;
  withParameter(engine, i, [&](Engine &e) -> Status {
    data = e.parameter(i).data;
    return {};
  });
  return data;
}
int tw_engine_start(tw_engine *engine) {
  return withEngine(engine, [](Engine &e) { return e.start(); });
}

int tw_engine_wait_parameter(tw_engine *engine, int32_t i) {
  return withParameter(engine, i, [&](Engine &e) { return e.waitParameter(i); });
}
int tw_engine_gradient(tw_engine *engine, int32_t i, tw_gradient_view *view) {
  return withParameter(engine, i, [&](Engine &e) -> Status {
    if (!view) return fail(Stage::Input, "tw_engine_gradient: view is null");
    const GradientView found = e.gradient(i);
    *view = {found.data, found.elements,
             static_cast<int32_t>(found.type == ElementType::BF16 ? TW_BFLOAT16 : TW_FLOAT32), found.add};
    return {};
  });
}
int tw_engine_grad_ready(tw_engine *engine, int32_t i) {
  return withParameter(engine, i, [&](Engine &e) { return e.gradReady(i); });
}
int tw_engine_end_micro_batch(tw_engine *engine) {
  return withEngine(engine, [](Engine &e) { return e.endMicroBatch(); });
}

int tw_engine_finish_step(tw_engine *engine, double tokens, const tw_step_options *given, tw_step_report *report) {
  return withEngine(engine, [&](Engine &e) -> Status {
    // Refused before anything of the step is done: the caller may put it right and call again.
    tw_step_options options = defaultStep();
    if (Status s = c::take("tw_step_options", given, options); !s) return s;
    if (Status s = c::checkSize("tw_step_report", report); !s) return s;
    Expected<StepSettings> settings = settingsOf(options);
    if (!settings) return propagate(settings);
    Expected<StepReport> done = e.finishStep(tokens, *settings);
    if (!done) return propagate(done);
    if (!report) return {};
    const size_t known = report->struct_size;
    const tw_step_report all{known, done->tokens, done->norm, done->skipped};
    std::memcpy(report, &all, known);
    return {};
  });
}
int tw_engine_synchronize(tw_engine *engine) {
  return withEngine(engine, [](Engine &e) { return e.synchronize(); });
}

int tw_engine_save(tw_engine *engine, const char *directory, int32_t keep) {
  return withEngine(engine, [&](Engine &e) -> Status {
    if (!directory) return fail(Stage::Input, "tw_engine_save: no directory");
    if (keep < 0) return fail(Stage::Input, fmt::format("tw_engine_save: keep: expected 0 or more, found {}", keep));
    return saveCheckpoint(e, {directory, {}, keep}).map([](const std::string &) {});
  });
}
int tw_engine_load(tw_engine *engine, const char *path) {
  return withEngine(engine, [&](Engine &e) -> Status {
    if (!path) return fail(Stage::Input, "tw_engine_load: no path");
    return loadCheckpoint(e, path).map([](const CheckpointSummary &) {});
  });
}

const char *tw_engine_last_error(void) { return lastError.c_str(); }
}
