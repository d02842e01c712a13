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
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.strategy = strategy;
  CHECK(tw_engine_create(&options, kParameters, 2, &engine) == 0);
  return engine;
}

static void step(tw_engine *engine, double rate) {
  tw_step_options options;
  tw_step_report report;
  tw_gradient_view view;
  int64_t e;
  int32_t i;
  tw_step_options_init(&options, sizeof(options));
  report.struct_size = sizeof(report);
  options.learning_rate = rate;
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

int main(int count, char **arguments) {
  tw_engine *engine = make("zero1"), *other;
  float *weight = tw_engine_parameter(engine, 0);
  tw_step_options bad;
  tw_engine_options wrong;
  tw_engine *none = NULL;
  float before;
  CHECK(count == 2);
  CHECK(tw_engine_rank(engine) == 0 && tw_engine_world_size(engine) == 1);
  weight[7] = 1;
  CHECK(tw_engine_start(engine) == 0);
  step(engine, 0.25);
  CHECK(fabsf(weight[7] - 0.75f) < 1e-6f); /* a constant gradient moves AdamW by the learning rate */
  CHECK(tw_engine_save(engine, arguments[1], 1) == 0);
  step(engine, 0.25);
  CHECK(tw_engine_updates(engine) == 2);

  other = make("bucketed");
  CHECK(tw_engine_load(other, arguments[1]) == 0);
  CHECK(tw_engine_updates(other) == 1);
  step(other, 0.25);
  CHECK(tw_engine_synchronize(other) == 0);
  CHECK(memcmp(tw_engine_parameter(other, 0), weight, 15 * sizeof(float)) == 0);

  CHECK(tw_engine_parameter(engine, 2) == NULL);
  CHECK(strstr(tw_engine_last_error(), "there is no parameter 2"));
  CHECK(tw_engine_load(engine, "/none") == -1 && strstr(tw_engine_last_error(), "/none: no such folder"));
  /* A learning rate of 0 is one, and so is a beta of 0. */
  before = weight[7];
  step(engine, 0);
  CHECK(weight[7] == before && tw_engine_updates(engine) == 3);
  tw_step_options_init(&bad, sizeof(bad));
  bad.beta1 = 1;
  CHECK(tw_engine_finish_step(engine, 1, &bad, NULL) == -1 && strstr(tw_engine_last_error(), "beta1"));
  tw_step_options_init(&bad, sizeof(bad));
  bad.non_finite = (tw_non_finite)7;
  CHECK(tw_engine_finish_step(engine, 1, &bad, NULL) == -1 && strstr(tw_engine_last_error(), "non_finite"));
  memset(&wrong, 0, sizeof(wrong));
  wrong.struct_size = sizeof(wrong);
  wrong.gradient_type = (tw_element_type)9;
  CHECK(tw_engine_create(&wrong, kParameters, 2, &none) == -1 && strstr(tw_engine_last_error(), "gradient_type"));
  wrong.gradient_type = TW_FLOAT32;
  wrong.backend = (tw_backend)9;
  CHECK(tw_engine_create(&wrong, kParameters, 2, &none) == -1 && strstr(tw_engine_last_error(), "backend"));
  CHECK(none == NULL);
  CHECK(tw_engine_start(NULL) == -1 && strstr(tw_engine_last_error(), "null"));
  CHECK(tw_engine_rank(NULL) == -1 && tw_engine_updates(NULL) == -1 && tw_engine_parameter(NULL, 0) == NULL);
  CHECK(tw_engine_gradient(engine, 0, NULL) == -1 && strstr(tw_engine_last_error(), "null"));
  tw_step_options_init(&bad, sizeof(bad));
  bad.struct_size = 4096;
  CHECK(tw_engine_finish_step(engine, 1, &bad, NULL) == -1 && strstr(tw_engine_last_error(), "struct_size"));
  tw_engine_destroy(other);
  tw_engine_destroy(engine);
  return 0;
}
