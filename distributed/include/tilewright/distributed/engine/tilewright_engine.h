/* The engine's host interface in C: data-parallel and ZeRO-1 training of parameters that the host computes gradients
 * of.
 *
 *   tw_engine *engine;
 *   tw_engine_create(&options, parameters, count, &engine);
 *   ... write rank 0's initial values to tw_engine_parameter(engine, i) ...
 *   tw_engine_start(engine);
 *   for each step:
 *     before parameter i is first used:  tw_engine_wait_parameter(engine, i)
 *     tw_engine_gradient(engine, i, &view); write it, or add to it if view.add; tw_engine_grad_ready(engine, i)
 *     after each micro-batch:            tw_engine_end_micro_batch(engine)
 *     tw_engine_finish_step(engine, tokens, &step, &report)
 *
 * The ranks find each other by the environment, as `tilewright launch` sets it. Functions return 0, or -1 with the
 * reason in tw_engine_last_error(), which is this thread's. A null engine is an error, as is a value outside an enum.
 *
 * Options and the report begin with their own size, so that later versions may add fields: TW_INIT(&options) zeroes a
 * struct and sets its size, tw_step_options_init() fills in a step's defaults. */
#ifndef TILEWRIGHT_ENGINE_H
#define TILEWRIGHT_ENGINE_H

#include "tilewright.h" /* TW_INIT */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_engine tw_engine;

typedef enum { TW_FLOAT32 = 0, TW_BFLOAT16 = 1 } tw_element_type;
typedef enum { TW_BACKEND_GLOO = 0, TW_BACKEND_NCCL = 1 } tw_backend;
typedef enum { TW_NON_FINITE_CONTINUE = 0, TW_NON_FINITE_SKIP = 1, TW_NON_FINITE_STOP = 2 } tw_non_finite;

typedef struct {
  const char *name;
  const int64_t *shape; /* `rank` extents; none for a scalar. */
  int32_t rank;
  double weight_decay;
} tw_parameter;

/* tw_engine_options: what is left 0 has its default. A null pointer stands for all defaults. */
typedef struct {
  size_t struct_size;
  const char *strategy; /* "zero1" (default), "bucketed", "overlap", "flat", "naive", "zero1-broadcast" */
  int64_t bucket_bytes; /* default 25 MiB over Gloo, 200 MiB over NCCL */
  int32_t parameter_type, gradient_type, reduction_type; /* tw_element_type */
  int32_t accumulation;                                  /* micro-batches a step, default 1 */
  int32_t no_global_norm;                                /* updates need not wait for all gradients; no clipping */
  int32_t backend;   /* tw_backend. Gloo: memory is the host's. NCCL: a GPU's, the one of the local rank. */
  void *host_stream; /* NCCL: the CUstream that writes gradients, or null for one of the engine's own. */
} tw_engine_options;

typedef struct {
  void *data;
  int64_t elements;
  int32_t type; /* tw_element_type */
  int32_t add;  /* An earlier micro-batch of this step has written it. */
} tw_gradient_view;

/* Every field counts as it is, 0 too: start from tw_step_options_init(). A null pointer stands for all defaults. */
typedef struct {
  size_t struct_size;
  double learning_rate; /* default 0.001; not negative */
  double beta1, beta2;  /* defaults 0.9, 0.95; in [0, 1) */
  double epsilon;       /* default 1e-8; above 0 */
  double max_norm;      /* default 0: no clipping */
  int32_t non_finite;   /* tw_non_finite, default TW_NON_FINITE_CONTINUE */
} tw_step_options;

typedef struct {
  size_t struct_size;
  double tokens, norm;
  int32_t skipped;
} tw_step_report;

/* Sets the fields that fit `struct_size` bytes, which is sizeof(tw_step_options), to their defaults. */
int tw_step_options_init(tw_step_options *options, size_t struct_size);

int tw_engine_create(const tw_engine_options *options, const tw_parameter *parameters, int32_t count,
                     tw_engine **engine);
/* Between steps in order; in the middle of one the other ranks are told. Null is ignored. */
void tw_engine_destroy(tw_engine *engine);

/* -1 for a null engine. */
int32_t tw_engine_rank(const tw_engine *engine);
int32_t tw_engine_world_size(const tw_engine *engine);
int64_t tw_engine_updates(const tw_engine *engine);

/* The values of parameter i, in the type of the options; null if there is no such parameter. */
void *tw_engine_parameter(tw_engine *engine, int32_t i);
int tw_engine_start(tw_engine *engine);

int tw_engine_wait_parameter(tw_engine *engine, int32_t i);
int tw_engine_gradient(tw_engine *engine, int32_t i, tw_gradient_view *view);
int tw_engine_grad_ready(tw_engine *engine, int32_t i);
int tw_engine_end_micro_batch(tw_engine *engine);
int tw_engine_finish_step(tw_engine *engine, double tokens, const tw_step_options *options, tw_step_report *report);
int tw_engine_synchronize(tw_engine *engine);

/* Called by all ranks; `keep` newest checkpoints stay, 0: all. Loading takes the place of tw_engine_start. */
int tw_engine_save(tw_engine *engine, const char *directory, int32_t keep);
int tw_engine_load(tw_engine *engine, const char *path);

/* Why this thread's last call failed; "" if none has. Valid until the next call. */
const char *tw_engine_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
