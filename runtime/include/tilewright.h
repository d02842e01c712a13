/* Attention for host applications, in C:
 *
 *   O = softmax(mask(score(scale * Q K^T))) V        and the gradients of Q, K and V
 *
 *   tw_context *context;
 *   tw_context_create(NULL, &context);
 *   tw_problem problem;
 *   tw_problem_init(&problem, sizeof problem);       then batch, heads, lengths, dims, mask, ...
 *   tw_attention *attention;
 *   tw_attention_prepare(context, &problem, NULL, &attention);        compiles, once
 *   tw_attention_workspace(attention, &args, &workspace);             how much scratch memory to bring
 *   tw_attention_forward(attention, &args, stream);                   any number of times
 *
 * Everything is thread-safe; a handle may be used by many threads at once, and an attention may outlive its context.
 * Nothing is printed, no signal handler is set, the process' state is left alone. Functions return TW_OK or the code
 * of what went wrong; tw_last_error() then tells this thread what, where and what to do about it.
 *
 * Structs begin with their own size, so that later versions may add fields: TW_INIT(&s) zeroes one and sets its size.
 */
#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TW_VERSION_MAJOR 0
#define TW_VERSION_MINOR 1
#define TW_VERSION_PATCH 0

#define TW_API __attribute__((visibility("default")))

#define TW_INIT(structure)                                                                                             \
  ((void)memset((structure), 0, sizeof(*(structure))), (void)((structure)->struct_size = sizeof(*(structure))))

/* The version of the library that runs: major * 10000 + minor * 100 + patch. */
TW_API int32_t tw_version(void);
/* 1 if the library carries the compiler (libtilewright), 0 if it only runs what caches and bundles hold
 * (libtilewright-runtime; it has no CPU target). */
TW_API int32_t tw_has_compiler(void);

/* ---- Errors */

/* What failed, by its place in a kernel's life. */
typedef enum {
  TW_OK = 0,
  TW_ERROR_INPUT = 1,   /* an argument, an expression, a JSON text */
  TW_ERROR_PLAN = 2,    /* the problem and the schedule do not fit the target */
  TW_ERROR_EMIT = 3,    /* making code; also: no compiler, and no cache has the kernel */
  TW_ERROR_COMPILE = 4, /* also: a kernel that is not prepared while its stream is captured */
  TW_ERROR_LOAD = 5,    /* the driver, the device, the code */
  TW_ERROR_LAUNCH = 6,  /* tensors that a kernel cannot work on, failed launches */
  TW_ERROR_CACHE = 7,
  TW_ERROR_OTHER = 8, /* out of memory, for one */
} tw_status;

typedef struct {
  size_t struct_size;
  int32_t code;        /* tw_status */
  const char *stage;   /* "input", "plan", ... */
  const char *message; /* One sentence: what, where, expected, found. */
  const char *hint;    /* What to do about it, or "". */
  const char *log;     /* The full log of the tool that failed (NVRTC, the driver), or "". */
} tw_error;

/* Why this thread's last failed call failed; the texts are valid until its next failure. Never null. */
TW_API const tw_error *tw_last_error(void);

/* ---- Context: caches, the driver, threads. Two contexts share nothing. */

typedef struct tw_context tw_context;

typedef enum { TW_LOG_DEBUG = 0, TW_LOG_INFO = 1, TW_LOG_WARNING = 2 } tw_log_level;
/* Calls are serialised. A callback must not call the library. */
typedef void (*tw_log_callback)(void *user, int32_t level, const char *message);

typedef struct {
  size_t struct_size;
  tw_log_callback log; /* Null: silent. */
  void *log_user;
  const char *cache_directory; /* Null: TILEWRIGHT_CACHE_DIR, else ~/.cache/tilewright. "": no disk cache. */
} tw_context_options;

/* Null options stand for all defaults. Environment variables (TILEWRIGHT_*) are read here. Opens no device and starts
 * no thread: a process may fork between this and its first prepare. */
TW_API int tw_context_create(const tw_context_options *options, tw_context **context);
/* Null is ignored. */
TW_API void tw_context_destroy(tw_context *context);

/* ---- Problem */

/* A table that `mask` or `score` reads: doc[q] == doc[k]. How it is read says the expression. */
typedef struct {
  const char *name;
  int32_t is_float; /* float32 elements, else int32 */
} tw_table_type;

/* Start from tw_problem_init(). */
typedef struct {
  size_t struct_size;
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v; /* 1, 1, 1, 1, 1, 64, 64 */
  const char *dtype;                                              /* "bf16" (null), "fp16", "fp32" */
  const char *layout; /* The order of tensors' axes: "bshd" (null) is batch, sequence, heads, dim; "bhsd". */
  int32_t gradients;  /* 1: backward too */
  int32_t causal;     /* Bottom-right aligned: key <= query + seq_kv - seq_q. */
  int64_t window_left, window_right; /* Inclusive bounds around the diagonal; -1 (default) is none. */
  double softcap;                    /* cap * tanh(s / cap); 0 is none */
  double scale;                      /* Of Q K^T; NaN (default) is 1 / sqrt(dim_qk). */
  const char *mask, *score; /* Expressions: "q - k < 100", "s - 0.1 * abs(q - k)". Null: all visible, s itself. */
  const tw_table_type *tables;
  int32_t table_count;
} tw_problem;

TW_API int tw_problem_init(tw_problem *problem, size_t struct_size);

/* ---- Attention: a problem's kernels, compiled and loaded */

typedef struct tw_attention tw_attention;

/* DLPack's device types. */
typedef enum { TW_CPU = 1, TW_CUDA = 2 } tw_device_type;

typedef struct {
  size_t struct_size;
  int32_t device_type; /* 0: the first GPU, else the CPU. */
  int32_t device_id;   /* CUDA ordinal */
  const char *target;  /* Null: the device's own; "sm_90", "sm_80", "x86-64-v3" for older code */
  /* Null: good defaults. "tile_q=128,backward=two_kernel" or as JSON {"tile_q": 128, "dkv.tile_kv": 64}. */
  const char *schedule;
  void *stream; /* If known: preparing what is not ready while this stream is captured is refused. */
} tw_prepare_options;

/* Finds the kernels in memory, bundles or the disk cache, or compiles them; what is ready costs microseconds. Batch,
 * lengths and scale are recommendations: each launch brings its own tensors. */
TW_API int tw_attention_prepare(tw_context *context, const tw_problem *problem, const tw_prepare_options *options,
                                tw_attention **attention);
/* A problem as JSON: {"batch": 2, "heads_q": 8, "causal": true, "direction": "backward", ...}. */
TW_API int tw_attention_prepare_json(tw_context *context, const char *problem, const tw_prepare_options *options,
                                     tw_attention **attention);
/* Null is ignored. Launches in flight are not disturbed. */
TW_API void tw_attention_destroy(tw_attention *attention);

/* What was prepared, as JSON: {"problem": ..., "target": ..., "kernels": [{"symbol", "role", "schedule", "origin",
 * "compile_ms", "registers", ...}]}. Valid as long as the handle. */
TW_API const char *tw_attention_describe(const tw_attention *attention);

/* ---- Tensors */

/* DLPack's type: code 0 int, 2 float, 4 bfloat; lanes 1. */
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} tw_dtype;

/* DLTensor of DLPack 1.x, byte for byte. Axes as the problem's layout says, the last one contiguous. On GPUs addresses
 * and strides are multiples of 16 bytes. */
typedef struct {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  tw_dtype dtype;
  const int64_t *shape;
  const int64_t *strides; /* In elements; null: row-major. */
  uint64_t byte_offset;
} tw_tensor;

/* A table's values: int32 or float32, one axis or (batch, axis), the last contiguous, where q is (CPU or GPU memory).
 */
typedef struct {
  const char *name;
  tw_tensor values;
  /* Only for int32 tables read by q or k on a GPU: smallest and largest of every 16 elements (a last group may have
   * fewer) of the last axis, int32, contiguous. They tell which tiles can be left out. */
  const int32_t *minima, *maxima;
} tw_table;

typedef struct {
  size_t struct_size;
  tw_tensor q, k, v, o;
  float *lse;                   /* (batch, heads_q, seq_q), contiguous: natural log of the row sums, with the scale */
  float *lse_rest;              /* As lse, or null. What rounding lse left out; makes gradients of huge scores exact. */
  tw_tensor d_o, d_q, d_k, d_v; /* For backward: d_o is read, the others are written. */
  const tw_table *tables;
  int32_t table_count;
  float scale;     /* 0: the problem's */
  void *workspace; /* 64-byte aligned, contents do not matter; null where tw_attention_workspace() says 0. */
  int64_t workspace_bytes;
} tw_attention_args;

typedef struct {
  size_t struct_size;
  int64_t forward_bytes, backward_bytes;
} tw_workspace;

/* Scratch memory for tensors of these shapes; only shapes are looked at, and only q's and k's. */
TW_API int tw_attention_workspace(const tw_attention *attention, const tw_attention_args *args,
                                  tw_workspace *workspace);

/* GPU: enqueues on `stream` (a CUstream or cudaStream_t; null is the legacy default stream) and returns; allocates
 * nothing, may be captured. CPU: computes and returns; `stream` is ignored. */
TW_API int tw_attention_forward(const tw_attention *attention, const tw_attention_args *args, void *stream);
/* From the o, lse and lse_rest that forward left. */
TW_API int tw_attention_backward(const tw_attention *attention, const tw_attention_args *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
