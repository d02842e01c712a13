/* A host in plain C: one rank trains one parameter, saves, and goes on in another engine. Exit code 0 if all is right.
 */
#include "tilewright/distributed/engine/tilewright_engine.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, tw_engine_last_error());                              \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static const int64_t kShape[] = {3, 5};
static const tw_parameter kParameters[] = {{"weight", kShape, 2, 0}, {"scalar", NULL, 0, 0}};

static tw_engine *make(const char *strategy) {
  tw_engine_options options;
  tw_engine *engine = NULL;
  TW_INIT(&options);
  options.strategy = strategy;
  CHECK(tw_engine_create(&options, kParameters, 2, &engine) == 0);
  return engine;
}

static void step(tw_engine *engine) {
  tw_step_options options;
  tw_step_report report;
  tw_gradient_view view;
  int64_t e;
  int32_t i;
  TW_INIT(&report);
  CHECK(tw_step_options_init(&options, sizeof(options)) == 0);
  options.learning_rate = 0.25;
  options.epsilon = 1e-30;
  for (i = 1; i >= 0; --i) {
    CHECK(tw_engine_wait_parameter(engine, i) == 0);
    CHECK(tw_engine_gradient(engine, i, &view) == 0);
    CHECK(view.type == TW_FLOAT32 && view.elements == (i ? 1 : 15) && !view.add);
    for (e = 0; e < view.elements; ++e)
      ((float *)view.data)[e] = 4.0f;
    CHECK(tw_engine_grad_ready(engine, i) == 0);
  }
  CHECK(tw_engine_finish_step(engine, 2, &options, &report) == 0);
  CHECK(report.tokens == 2 && fabs(report.norm - 8) < 1e-12 && !report.skipped); /* sixteen means of 2 */
}

/* One element of a gradient of 1 and then 0, and what `options` make of it. */
static float moved(const tw_step_options *options) {
  tw_engine *engine = make("flat");
  tw_step_report report;
  float *weight = tw_engine_parameter(engine, 0);
  tw_gradient_view view;
  int step;
  float result;
  TW_INIT(&report);
  CHECK(tw_engine_start(engine) == 0);
  for (step = 0; step < 2; ++step) {
    CHECK(tw_engine_gradient(engine, 0, &view) == 0);
    memset(view.data, 0, 15 * sizeof(float));
    ((float *)view.data)[3] = step ? 0.0f : 1.0f;
    CHECK(tw_engine_grad_ready(engine, 0) == 0);
    CHECK(tw_engine_finish_step(engine, 1, options, &report) == 0);
  }
  CHECK(tw_engine_synchronize(engine) == 0);
  result = weight[3];
  tw_engine_destroy(engine);
  return result;
}

static void zeroIsZero(void) {
  tw_step_options options;
  CHECK(tw_step_options_init(&options, sizeof(options)) == 0);
  CHECK(options.learning_rate == 0.001 && options.beta1 == 0.9 && options.beta2 == 0.95 && options.epsilon == 1e-8);
  CHECK(moved(&options) == moved(NULL));
  options.beta1 = 0; /* the second step, whose gradient is 0, moves nothing */
  CHECK(fabsf(moved(&options) + 0.001f) < 1e-8f);
  options.learning_rate = 0;
  CHECK(moved(&options) == 0);
}

static void refuses(tw_engine *engine, const tw_step_options *options, tw_step_report *report, const char *field) {
  CHECK(tw_engine_finish_step(engine, 1, options, report) == -1 && strstr(tw_engine_last_error(), field));
}

static void badValues(tw_engine *engine) {
  tw_engine_options create;
  tw_step_options good, bad;
  tw_step_report report;
  tw_engine *none = NULL;
  CHECK(tw_step_options_init(&good, sizeof(good)) == 0);
  bad = good, bad.struct_size = 4096;
  refuses(engine, &bad, NULL, "tw_step_options.struct_size");
  TW_INIT(&bad); /* zeroed: no values that AdamW can work with */
  refuses(engine, &bad, NULL, "epsilon");
  bad = good, bad.learning_rate = NAN;
  refuses(engine, &bad, NULL, "learning_rate");
  bad = good, bad.beta1 = 1;
  refuses(engine, &bad, NULL, "beta1");
  bad = good, bad.non_finite = 3;
  refuses(engine, &bad, NULL, "non_finite");
  memset(&report, 0, sizeof(report));
  refuses(engine, &good, &report, "tw_step_report.struct_size");

  TW_INIT(&create);
  create.reduction_type = 2;
  CHECK(tw_engine_create(&create, kParameters, 2, &none) == -1 && strstr(tw_engine_last_error(), "reduction_type"));
  TW_INIT(&create);
  create.backend = -1;
  CHECK(tw_engine_create(&create, kParameters, 2, &none) == -1 && strstr(tw_engine_last_error(), "backend"));
  CHECK(!none);
}

/* A caller of an older version, whose report ends earlier: nothing is written behind it. */
static void shortReport(tw_engine *engine) {
  tw_step_report report;
  TW_INIT(&report);
  report.struct_size = offsetof(tw_step_report, norm);
  report.norm = -5;
  CHECK(tw_engine_finish_step(engine, 3, NULL, &report) == 0);
  CHECK(report.tokens == 3 && report.norm == -5 && report.struct_size == offsetof(tw_step_report, norm));
}

static void nullPointers(tw_engine *engine) {
  CHECK(tw_engine_rank(NULL) == -1 && strstr(tw_engine_last_error(), "null"));
  CHECK(tw_engine_world_size(NULL) == -1 && tw_engine_updates(NULL) == -1 && !tw_engine_parameter(NULL, 0));
  CHECK(tw_engine_start(NULL) == -1 && tw_engine_end_micro_batch(NULL) == -1 && tw_engine_synchronize(NULL) == -1);
  CHECK(tw_engine_wait_parameter(NULL, 0) == -1 && tw_engine_grad_ready(NULL, 0) == -1);
  CHECK(tw_engine_finish_step(NULL, 1, NULL, NULL) == -1);
  CHECK(tw_engine_save(NULL, "x", 1) == -1 && tw_engine_load(NULL, "x") == -1);
  CHECK(tw_engine_gradient(engine, 0, NULL) == -1 && strstr(tw_engine_last_error(), "view is null"));
  CHECK(tw_step_options_init(NULL, sizeof(tw_step_options)) == -1);
  tw_engine_destroy(NULL);
}

/* What a library throws does not come through: no machine has memory for this. */
static void tooLarge(void) {
  const int64_t shape[] = {(int64_t)1 << 58};
  const tw_parameter huge = {"huge", shape, 1, 0};
  tw_engine *none = NULL;
  CHECK(tw_engine_create(NULL, &huge, 1, &none) == -1 && !none && *tw_engine_last_error());
}

int main(int count, char **arguments) {
  tw_engine *engine = make("zero1"), *other;
  float *weight = tw_engine_parameter(engine, 0);
  CHECK(count == 2);
  CHECK(tw_engine_rank(engine) == 0 && tw_engine_world_size(engine) == 1);
  weight[7] = 1;
  CHECK(tw_engine_start(engine) == 0);
  step(engine);
  CHECK(fabsf(weight[7] - 0.75f) < 1e-6f); /* a constant gradient moves AdamW by the learning rate */
  CHECK(tw_engine_save(engine, arguments[1], 1) == 0);
  step(engine);
  CHECK(tw_engine_updates(engine) == 2);

  other = make("bucketed");
  CHECK(tw_engine_load(other, arguments[1]) == 0);
  CHECK(tw_engine_updates(other) == 1);
  step(other);
  CHECK(tw_engine_synchronize(other) == 0);
  CHECK(memcmp(tw_engine_parameter(other, 0), weight, 15 * sizeof(float)) == 0);

  CHECK(tw_engine_parameter(engine, 2) == NULL);
  CHECK(strstr(tw_engine_last_error(), "there is no parameter 2"));
  CHECK(tw_engine_load(engine, "/none") == -1 && strstr(tw_engine_last_error(), "/none: no such folder"));
  badValues(engine);
  shortReport(engine);
  nullPointers(engine);
  zeroIsZero();
  tooLarge();
  tw_engine_destroy(other);
  tw_engine_destroy(engine);
  return 0;
}
