#include "TransformerState.h"
#include <algorithm>

namespace tilewright::train {

Status Transformer::State::headLoss(const Rows &r, bool gradients, ParameterHost &host) {
  if (Status status = host.wait(index.head()); !status) return status;
  const Matrix weight = parameter(index.head(), host);
  // Logits are the largest matrix by far: a part at a time, whose gradient is used up at once.
  bool add = gradients && host.gradient(index.head()).add;
  for (int64_t begin = 0; begin < r.count(); begin += a.logits.rows) {
    const int64_t count = std::min(a.logits.rows, r.count() - begin);
    const Matrix x = a.outputNorm.rowRange(begin, count), logits = a.logits.rowRange(0, count);
    if (Status status = backend.matmul(x, false, weight, true, logits, false); !status) return status;
    if (Status status = backend.crossEntropy(logits, a.targets + begin, a.loss, gradients); !status) return status;
    if (!gradients) continue;
    if (Status status = backend.matmul(logits, true, x, false, gradient(index.head(), host), add); !status)
      return status;
    add = true;
    if (Status status = backend.matmul(logits, false, weight, false, a.dNorm.rowRange(begin, count), false); !status)
      return status;
  }
  return gradients ? host.ready(index.head()) : Status();
}

Status Transformer::State::backward(const Rows &r, ParameterHost &host) {
  if (Status status = backend.rmsNormBackward(rows(a.dNorm, r), rows(a.output, r), parameter(index.norm(), host),
                                              a.outputInverse, rows(a.dStream, r), false, gradient(index.norm(), host),
                                              host.gradient(index.norm()).add);
      !status)
    return status;
  if (Status status = host.ready(index.norm()); !status) return status;
  for (int64_t l = config.layers; l-- > 0;) {
    if (Status status = mlpBackward(l, r, host); !status) return status;
    if (Status status = attentionBackward(l, r, host); !status) return status;
  }
  if (Status status = backend.embeddingBackward(a.tokens, rows(a.dStream, r), gradient(index.embedding(), host),
                                                host.gradient(index.embedding()).add);
      !status)
    return status;
  return host.ready(index.embedding());
}

Status Transformer::State::mlpBackward(int64_t l, const Rows &r, ParameterHost &host) {
  const LayerActivations &own = a.layers[static_cast<size_t>(l)];
  const Matrix dStream = rows(a.dStream, r), dNorm = rows(a.dNorm, r), dMlp = rows(a.dMlp, r);
  const int down[] = {index.layer(l, ParameterIndex::Down)};
  if (Status status = projectBackward(dStream, rows(own.mlp, r), down, dMlp, host); !status) return status;
  auto of = [&](const Matrix &all, ParameterIndex::Of which) { return rows(part(all, l, which, host), r); };
  if (Status status =
          backend.swigluBackward(of(own.gateUp, ParameterIndex::Gate), of(own.gateUp, ParameterIndex::Up), dMlp,
                                 of(a.dGateUp, ParameterIndex::Gate), of(a.dGateUp, ParameterIndex::Up));
      !status)
    return status;
  const int gateUp[] = {index.layer(l, ParameterIndex::Gate), index.layer(l, ParameterIndex::Up)};
  if (Status status = projectBackward(rows(a.dGateUp, r), rows(own.mlpNorm, r), gateUp, dNorm, host); !status)
    return status;
  const int norm = index.layer(l, ParameterIndex::MlpNorm);
  if (Status status = backend.rmsNormBackward(dNorm, rows(own.mlpInput, r), parameter(norm, host), own.mlpInverse,
                                              dStream, true, gradient(norm, host), host.gradient(norm).add);
      !status)
    return status;
  return host.ready(norm);
}

Status Transformer::State::attentionBackward(int64_t l, const Rows &r, ParameterHost &host) {
  const LayerActivations &own = a.layers[static_cast<size_t>(l)];
  const Matrix dStream = rows(a.dStream, r), dNorm = rows(a.dNorm, r), dAttended = rows(a.dAttended, r);
  const int o[] = {index.layer(l, ParameterIndex::O)};
  if (Status status = projectBackward(dStream, rows(own.attended, r), o, dAttended, host); !status) return status;
  auto of = [&](const Matrix &all, ParameterIndex::Of which) { return rows(part(all, l, which, host), r); };
  const Matrix dQ = of(a.dQkv, ParameterIndex::Q), dK = of(a.dQkv, ParameterIndex::K),
               dV = of(a.dQkv, ParameterIndex::V);
  const AttentionShape shape{r.sequences, config.heads, config.headDim(), r.length, r.length};
  if (Status status =
          backend.attentionBackward(shape,
                                    {of(own.qkv, ParameterIndex::Q), of(own.qkv, ParameterIndex::K),
                                     of(own.qkv, ParameterIndex::V), rows(own.attended, r), own.lse, own.lseRest},
                                    {dAttended, dQ, dK, dV, a.attentionDelta});
      !status)
    return status;
  const RotaryTables tables{a.cosines, a.sines, config.headDim() / 2};
  for (const Matrix &rotated : {dQ, dK})
    if (Status status = backend.rope(rotated, config.headDim(), r.length, 0, tables, true); !status) return status;
  const int qkv[] = {index.layer(l, ParameterIndex::Q), index.layer(l, ParameterIndex::K),
                     index.layer(l, ParameterIndex::V)};
  if (Status status = projectBackward(rows(a.dQkv, r), rows(own.attentionNorm, r), qkv, dNorm, host); !status)
    return status;
  const int norm = index.layer(l, ParameterIndex::AttentionNorm);
  if (Status status =
          backend.rmsNormBackward(dNorm, rows(own.attentionInput, r), parameter(norm, host), own.attentionInverse,
                                  dStream, true, gradient(norm, host), host.gradient(norm).add);
      !status)
    return status;
  return host.ready(norm);
}

} // namespace tilewright::train
