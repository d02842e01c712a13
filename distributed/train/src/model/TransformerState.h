// The passes of a Transformer, over the rows of one call.
#pragma once

#include "Activations.h"

namespace tilewright::train {

/// Matrices that multiply the same rows: one product where they lie beside each other in memory, as the engine's
/// arenas have them unless a bucket ends between them.
struct Projection {
  std::vector<Matrix> parts; ///< By their place in memory, and so by columns of the product.
  Matrix joined;             ///< All of them as one matrix; data is null if they are apart.
};

struct Transformer::State {
  ModelConfig config;
  ParameterIndex index;
  Backend &backend;
  int64_t sequences = 0;
  bool training = false;
  int64_t allocatedBytes = 0;
  Activations a;

  State(const ModelConfig &config, Backend &backend) : config(config), index{config.layers}, backend(backend) {}

  /// Rows of the call: sequences of `length` tokens at positions from `start`.
  struct Rows {
    int64_t sequences = 0, length = 0, start = 0;
    int64_t count() const { return sequences * length; }
  };
  Matrix rows(const Matrix &all, const Rows &r) const { return all.rowRange(r.start, r.count()); }

  Status check(const Batch &batch) const;
  Status upload(const Batch &batch);
  Status fillTables();

  Status forward(const Rows &r, ParameterHost &host);
  Status attentionForward(int64_t l, const Rows &r, ParameterHost &host);
  Status mlpForward(int64_t l, const Rows &r, ParameterHost &host);
  /// Losses of all rows; with `gradients`, dNorm becomes the gradient of outputNorm, and head gets its own.
  Status headLoss(const Rows &r, bool gradients, ParameterHost &host);
  Status backward(const Rows &r, ParameterHost &host);
  Status mlpBackward(int64_t l, const Rows &r, ParameterHost &host);
  Status attentionBackward(int64_t l, const Rows &r, ParameterHost &host);
  Expected<double> run(const Batch &batch, bool gradients, ParameterHost &host);

  Matrix parameter(int i, ParameterHost &host) const;
  Matrix gradient(int i, ParameterHost &host) const;
  /// Matrices q, k, v or gate, up in the order of their columns in qkv and gateUp, which is that of their addresses.
  Projection projection(std::span<const int> parameters, ParameterHost &host) const;
  Projection gradientProjection(std::span<const int> parameters, ParameterHost &host) const;
  Status project(const Matrix &x, const Projection &weights, const Matrix &y);
  Status projectBackward(const Matrix &dY, const Matrix &x, std::span<const int> parameters, const Matrix &dX,
                         ParameterHost &host);
  /// The columns of parameter `which` of q, k, v in qkv.
  Matrix part(const Matrix &all, int64_t l, ParameterIndex::Of which, ParameterHost &host) const;
};

} // namespace tilewright::train
