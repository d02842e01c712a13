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

static void step(tw_engine *engine) {
  tw_step_options options;
  tw_step_report report;
  tw_gradient_view view;
  int64_t e;
  int32_t i;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
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

int main(int count, char **arguments) {
  tw_engine *engine = make("zero1"), *other;
  float *weight = tw_engine_parameter(engine, 0);
  tw_step_options bad;
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
  memset(&bad, 0, sizeof(bad));
  bad.struct_size = 4096;
  CHECK(tw_engine_finish_step(engine, 1, &bad, NULL) == -1 && strstr(tw_engine_last_error(), "struct_size"));
  tw_engine_destroy(other);
  tw_engine_destroy(engine);
  return 0;
}
