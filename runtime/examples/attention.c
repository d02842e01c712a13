/* Causal attention and its gradients on the CPU, from C. With causal masking the first query sees the first key alone,
 * so the first row of o is the first row of v. */
#include <stdio.h>
#include <stdlib.h>
#include <tilewright.h>

enum { kHeads = 2, kSequence = 100, kDim = 32, kRow = kHeads * kDim, kElements = kSequence * kRow };

static const int64_t kShape[4] = {1, kSequence, kHeads, kDim};

static void require(int status) {
  if (status == TW_OK) return;
  fprintf(stderr, "%s: %s\n%s\n", tw_last_error()->stage, tw_last_error()->message, tw_last_error()->hint);
  exit(1);
}

static void *allocate(int64_t bytes) {
  void *memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
  if (!memory) exit(1);
  return memory;
}

/* A contiguous float32 tensor (batch, sequence, heads, dim), filled with small numbers. */
static tw_tensor tensor(unsigned seed) {
  const tw_dtype float32 = {2, 32, 1};
  tw_tensor made = {NULL, TW_CPU, 0, 4, {0, 0, 0}, NULL, NULL, 0};
  float *values = allocate(kElements * sizeof(float));
  int i;
  for (i = 0; i < kElements; ++i)
    values[i] = (float)((i * 7919u + seed * 104729u) % 1000u) / 500.0f - 1.0f;
  made.data = values;
  made.dtype = float32;
  made.shape = kShape;
  return made;
}

int main(void) {
  tw_context *context;
  tw_problem problem;
  tw_prepare_options options;
  tw_attention *attention;
  tw_attention_args args;
  tw_workspace workspace;
  float difference = 0, step;
  int i;

  require(tw_context_create(NULL, &context));
  require(tw_problem_init(&problem, sizeof problem));
  problem.heads_q = problem.heads_kv = kHeads;
  problem.seq_q = problem.seq_kv = kSequence;
  problem.dim_qk = problem.dim_v = kDim;
  problem.dtype = "fp32";
  problem.causal = problem.gradients = 1;
  TW_INIT(&options);
  options.device_type = TW_CPU;
  require(tw_attention_prepare(context, &problem, &options, &attention));

  TW_INIT(&args);
  args.q = tensor(1), args.k = tensor(2), args.v = tensor(3), args.o = tensor(4), args.d_o = tensor(5);
  args.d_q = tensor(6), args.d_k = tensor(7), args.d_v = tensor(8);
  args.lse = allocate(kHeads * kSequence * sizeof(float));
  TW_INIT(&workspace);
  require(tw_attention_workspace(attention, &args, &workspace));
  args.workspace_bytes = workspace.forward_bytes + workspace.backward_bytes; /* each pass uses all of it */
  args.workspace = allocate(args.workspace_bytes + 64);
  require(tw_attention_forward(attention, &args, NULL));
  require(tw_attention_backward(attention, &args, NULL));

  for (i = 0; i < kRow; ++i) {
    step = ((float *)args.o.data)[i] - ((float *)args.v.data)[i];
    difference = step * step > difference ? step * step : difference;
  }
  printf("lse[0] %.4f, first row off by %.1e\n", (double)args.lse[0], (double)difference);
  tw_attention_destroy(attention);
  tw_context_destroy(context);
  return difference < 1e-10f ? 0 : 1;
}
