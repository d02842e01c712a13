#include "TransformerState.h"

namespace tilewright::train {

using Of = ParameterIndex::Of;

Status Transformer::State::forward(const Rows &r, ParameterHost &host) {
  if (Status status = host.wait(index.embedding()); !status) return status;
  const Matrix table = parameter(index.embedding(), host);
  if (Status status = backend.embedding(a.tokens + r.start, table, rows(a.layers[0].attentionInput, r)); !status)
    return status;
  for (int64_t l = 0; l < config.layers; ++l) {
    if (Status status = attentionForward(l, r, host); !status) return status;
    if (Status status = mlpForward(l, r, host); !status) return status;
  }
  if (Status status = host.wait(index.norm()); !status) return status;
  const LayerActivations &last = a.layers.back();
  return backend.rmsNorm(rows(last.mlpInput, r), rows(a.delta, r), rows(a.output, r), parameter(index.norm(), host),
                         config.normEpsilon, rows(a.outputNorm, r), a.outputInverse + r.start);
}

Status Transformer::State::attentionForward(int64_t l, const Rows &r, ParameterHost &host) {
  const LayerActivations &own = a.layers[static_cast<size_t>(l)];
  for (Of which : {ParameterIndex::AttentionNorm, ParameterIndex::Q, ParameterIndex::K, ParameterIndex::V})
    if (Status status = host.wait(index.layer(l, which)); !status) return status;
  // The stream is the one before the last MLP and what that adds; the first layer's is the embedding itself.
  const Matrix stream = rows(own.attentionInput, r);
  const Matrix before = l == 0 ? stream : rows(a.layers[static_cast<size_t>(l - 1)].mlpInput, r);
  if (Status status = backend.rmsNorm(before, l == 0 ? Matrix() : rows(a.delta, r), stream,
                                      parameter(index.layer(l, ParameterIndex::AttentionNorm), host),
                                      config.normEpsilon, rows(own.attentionNorm, r), own.attentionInverse + r.start);
      !status)
    return status;
  const int qkv[] = {index.layer(l, ParameterIndex::Q), index.layer(l, ParameterIndex::K),
                     index.layer(l, ParameterIndex::V)};
  if (Status status = project(rows(own.attentionNorm, r), projection(qkv, host), rows(own.qkv, r)); !status)
    return status;
  const Matrix q = part(own.qkv, l, ParameterIndex::Q, host), k = part(own.qkv, l, ParameterIndex::K, host),
               v = part(own.qkv, l, ParameterIndex::V, host);
  const RotaryTables tables{a.cosines, a.sines, config.headDim() / 2};
  for (const Matrix &rotated : {q, k})
    if (Status status = backend.rope(rows(rotated, r), config.headDim(), r.length, r.start, tables, false); !status)
      return status;
  const AttentionShape shape{r.sequences, config.heads, config.headDim(), r.length, r.start + r.length};
  // Keys and values of a sequence that goes on start with its first token.
  const int64_t keyRows = r.sequences * shape.keys;
  if (Status status = backend.attention(shape, {rows(q, r), k.rowRange(0, keyRows), v.rowRange(0, keyRows),
                                                rows(own.attended, r), own.lse, own.lseRest});
      !status)
    return status;
  if (Status status = host.wait(index.layer(l, ParameterIndex::O)); !status) return status;
  return backend.matmul(rows(own.attended, r), false, parameter(index.layer(l, ParameterIndex::O), host), true,
                        rows(a.delta, r), false);
}

Status Transformer::State::mlpForward(int64_t l, const Rows &r, ParameterHost &host) {
  const LayerActivations &own = a.layers[static_cast<size_t>(l)];
  for (Of which : {ParameterIndex::MlpNorm, ParameterIndex::Gate, ParameterIndex::Up})
    if (Status status = host.wait(index.layer(l, which)); !status) return status;
  if (Status status = backend.rmsNorm(rows(own.attentionInput, r), rows(a.delta, r), rows(own.mlpInput, r),
                                      parameter(index.layer(l, ParameterIndex::MlpNorm), host), config.normEpsilon,
                                      rows(own.mlpNorm, r), own.mlpInverse + r.start);
      !status)
    return status;
  const int gateUp[] = {index.layer(l, ParameterIndex::Gate), index.layer(l, ParameterIndex::Up)};
  if (Status status = project(rows(own.mlpNorm, r), projection(gateUp, host), rows(own.gateUp, r)); !status)
    return status;
  if (Status status = backend.swiglu(rows(part(own.gateUp, l, ParameterIndex::Gate, host), r),
                                     rows(part(own.gateUp, l, ParameterIndex::Up, host), r), rows(own.mlp, r));
      !status)
    return status;
  if (Status status = host.wait(index.layer(l, ParameterIndex::Down)); !status) return status;
  return backend.matmul(rows(own.mlp, r), false, parameter(index.layer(l, ParameterIndex::Down), host), true,
                        rows(a.delta, r), false);
}

} // namespace tilewright::train
