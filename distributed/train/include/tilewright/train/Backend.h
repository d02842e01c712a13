// What the model needs of a machine: memory, matrix products, the layers between them and attention, each forward and
// backward. The model is written once against this; a backend runs whole matrices a call.
//
// Calls of one backend come from one thread and take effect in their order. On a GPU they are enqueued: their results
// are there for later calls, and for the host after toHost(). Rows of x, y and their gradients are tokens. Activations
// have the backend's activationType(), parameters and gradients any of F32 and BF16; sums are in fp32.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/train/Matrix.h"
#include "tilewright/tuning/ScheduleChoice.h"
#include <string_view>

namespace tilewright::train {

struct AttentionShape {
  int64_t batch = 0, heads = 0, headDim = 0;
  int64_t queries = 0, keys = 0; ///< Causal: query i sees key j iff j <= i + keys - queries.
};

/// q and o have batch * queries rows, k and v batch * keys; columns are heads * headDim. lse and lseRest are
/// (batch, heads, queries), as in KernelArgs.
struct AttentionTensors {
  Matrix q, k, v, o;
  float *lse = nullptr, *lseRest = nullptr;
};

/// delta is workspace, (batch, heads, queries).
struct AttentionGradients {
  Matrix dO, dQ, dK, dV;
  float *delta = nullptr;
};

/// Cosines and sines of position p and pair i at [p * pairs + i].
struct RotaryTables {
  const float *cosines = nullptr, *sines = nullptr;
  int64_t pairs = 0;
};

class Backend {
public:
  virtual ~Backend() = default;

  virtual ElementType activationType() const = 0;
  /// Rows of logits that are computed at a time.
  virtual int64_t headRows() const = 0;
  /// Columns of activations and of heads must be multiples of it.
  virtual int64_t columnUnit() const { return 1; }
  /// "OpenBLAS 0.3.21 ..., 2 threads", for people.
  virtual std::string description() const = 0;
  /// Floating-point operations a second that its matrix products reach at best: what MFU is a share of. 0 is unknown.
  virtual double peakFlops() = 0;

  /// Zeroed; lives as long as the backend. `what` names it in the error.
  virtual Expected<void *> allocate(int64_t bytes, std::string_view what) = 0;
  virtual Status fromHost(void *to, const void *from, int64_t bytes) = 0;
  virtual Status toHost(void *to, const void *from, int64_t bytes) = 0;
  virtual Status clear(void *data, int64_t bytes) = 0;

  /// c = op(a) op(b), or c += with `add`; op transposes where asked.
  virtual Status matmul(const Matrix &a, bool transposeA, const Matrix &b, bool transposeB, const Matrix &c,
                        bool add) = 0;

  /// y[r] = table[tokens[r]]. Tokens are the backend's memory and below table.rows.
  virtual Status embedding(const int32_t *tokens, const Matrix &table, const Matrix &y) = 0;
  /// dTable[tokens[r]] += dY[r]; without `add` the rest of dTable becomes zero.
  virtual Status embeddingBackward(const int32_t *tokens, const Matrix &dY, const Matrix &dTable, bool add) = 0;

  /// sum = x + addend where addend.data is set (else sum is x and not written);
  /// y = sum / rms(sum) * weight, rms = sqrt(mean of squares + epsilon); inverse[r] = 1 / rms of row r.
  virtual Status rmsNorm(const Matrix &x, const Matrix &addend, const Matrix &sum, const Matrix &weight, double epsilon,
                         const Matrix &y, float *inverse) = 0;
  /// dX = the gradient of x by dY, or dX += with `addToX`; dWeight likewise with `addToWeight`. x is rmsNorm's sum.
  virtual Status rmsNormBackward(const Matrix &dY, const Matrix &x, const Matrix &weight, const float *inverse,
                                 const Matrix &dX, bool addToX, const Matrix &dWeight, bool addToWeight) = 0;

  /// Rotates neighbouring columns (2i, 2i + 1) of each head by position * ropeBase^(-2i / headDim), in place; `inverse`
  /// rotates back, which is the gradient. The position of row r is start + r % length.
  virtual Status rope(const Matrix &x, int64_t headDim, int64_t length, int64_t start, const RotaryTables &tables,
                      bool inverse) = 0;

  /// y = silu(gate) * up, silu(g) = g / (1 + exp(-g)).
  virtual Status swiglu(const Matrix &gate, const Matrix &up, const Matrix &y) = 0;
  virtual Status swigluBackward(const Matrix &gate, const Matrix &up, const Matrix &dY, const Matrix &dGate,
                                const Matrix &dUp) = 0;

  /// *loss += sum over rows of logsumexp(logits[r]) - logits[r, targets[r]]; rows whose target is negative count
  /// nothing. With `gradient` logits become the gradient of that sum, softmax - one-hot.
  virtual Status crossEntropy(const Matrix &logits, const int32_t *targets, double *loss, bool gradient) = 0;

  /// Attention of the plans' head dim goes by these from now on, and by default schedules where none is given. Results
  /// depend on schedules in their last bits: all ranks are given the same. Plans that split keys are not for a model.
  virtual void useSchedules(const std::vector<PlanChoice> &plans) { (void)plans; }

  /// Compiles what the next two need, so that no step waits for it; with `gradients` also attentionBackward's.
  virtual Status prepareAttention(const AttentionShape &shape, bool gradients) = 0;
  /// Causal attention by Tilewright's kernels; gradients are written, not added.
  virtual Status attention(const AttentionShape &shape, const AttentionTensors &tensors) = 0;
  virtual Status attentionBackward(const AttentionShape &shape, const AttentionTensors &tensors,
                                   const AttentionGradients &gradients) = 0;
};

} // namespace tilewright::train
