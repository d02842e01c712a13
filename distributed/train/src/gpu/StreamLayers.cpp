#include "gpu/StreamBackend.h"
#include <algorithm>

namespace tilewright::train {
namespace {

/// Blocks that share the vocabulary in the embedding's gradient: enough to fill a GPU, and each reads all tokens.
constexpr int64_t kVocabularyParts = 512;
/// Parts that rows are cut into for a weight's gradient. Like their least size, it decides the order of additions.
constexpr int64_t kMostChunks = 64, kLeastChunkRows = 64;

int64_t ceilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }
int32_t narrow(int64_t value) { return static_cast<int32_t>(value); } // ModelConfig::validate() has seen to it
RowsRef ref(const Matrix &m) { return {m.data, m.stride}; }

std::string typed(const char *name, ElementType type) {
  return std::string("tw_train_") + name + (type == ElementType::F32 ? "_f32" : "_bf16");
}
std::string typed(const char *name, ElementType first, ElementType second) {
  return typed(name, first) + (second == ElementType::F32 ? "_f32" : "_bf16");
}

} // namespace

Status StreamBackend::embedding(const int32_t *tokens, const Matrix &table, const Matrix &y) {
  return launchRows(typed("embedding", table.type, y.type), y.rows,
                    EmbeddingArgs{tokens, ref(table), ref(y), y.rows, narrow(y.columns), narrow(table.rows)});
}

Status StreamBackend::embeddingBackward(const int32_t *tokens, const Matrix &dY, const Matrix &dTable, bool add) {
  const int64_t perBlock = ceilDiv(dTable.rows, kVocabularyParts);
  const int64_t blocks = ceilDiv(dTable.rows, perBlock) * ceilDiv(dTable.columns, kTileColumns);
  return kernels.launch(typed("embedding_gradient", dY.type, dTable.type), stream(), blocks,
                        EmbeddingGradientArgs{tokens, ref(dY), ref(dTable), dY.rows, narrow(dY.columns),
                                              narrow(dTable.rows), narrow(perBlock), add});
}

Status StreamBackend::rmsNorm(const Matrix &x, const Matrix &addend, const Matrix &sum, const Matrix &weight,
                              double epsilon, const Matrix &y, float *inverse) {
  return launchRows(typed("norm", x.type, weight.type), x.rows,
                    RowNormArgs{ref(x), ref(addend), ref(sum), ref(y), weight.data, inverse, x.rows, narrow(x.columns),
                                static_cast<float>(epsilon)});
}

Status StreamBackend::rmsNormBackward(const Matrix &dY, const Matrix &x, const Matrix &weight, const float *inverse,
                                      const Matrix &dX, bool addToX, const Matrix &dWeight, bool addToWeight) {
  const int64_t chunkRows = std::max(kLeastChunkRows, ceilDiv(x.rows, kMostChunks));
  const int64_t chunks = ceilDiv(x.rows, chunkRows);
  Expected<void *> memory = scratch(std::max<int64_t>(chunks, 1) * x.columns * 4, RowSums);
  if (!memory) return propagate(memory);
  float *partial = static_cast<float *>(*memory);
  Status status = launchRows(
      typed("norm_gradient", x.type, weight.type), x.rows,
      RowNormGradientArgs{ref(dY), ref(x), ref(dX), weight.data, inverse, x.rows, narrow(x.columns), addToX});
  if (status)
    status =
        kernels.launch(typed("norm_weight", x.type), stream(), chunks * ceilDiv(x.columns, kTileColumns),
                       NormWeightArgs{ref(dY), ref(x), inverse, partial, x.rows, narrow(x.columns), narrow(chunkRows)});
  if (status)
    status = kernels.launch(typed("norm_weight_sum", dWeight.type), stream(), ceilDiv(x.columns, kLayerThreads),
                            NormWeightSumArgs{partial, dWeight.data, narrow(x.columns), narrow(chunks), addToWeight});
  return status;
}

Status StreamBackend::rope(const Matrix &x, int64_t headDim, int64_t length, int64_t start, const RotaryTables &tables,
                           bool inverse) {
  return launchRows(typed("rotary", x.type), x.rows,
                    RotaryArgs{ref(x), tables.cosines, tables.sines, x.rows, narrow(x.columns), narrow(headDim),
                               narrow(length), narrow(start), inverse ? -1.0f : 1.0f});
}

Status StreamBackend::swiglu(const Matrix &gate, const Matrix &up, const Matrix &y) {
  return launchRows(typed("swiglu", y.type), y.rows, GateArgs{ref(gate), ref(up), ref(y), y.rows, narrow(y.columns)});
}

Status StreamBackend::swigluBackward(const Matrix &gate, const Matrix &up, const Matrix &dY, const Matrix &dGate,
                                     const Matrix &dUp) {
  return launchRows(typed("swiglu_gradient", dY.type), dY.rows,
                    GateGradientArgs{ref(gate), ref(up), ref(dY), ref(dGate), ref(dUp), dY.rows, narrow(dY.columns)});
}

Status StreamBackend::crossEntropy(const Matrix &logits, const int32_t *targets, double *loss, bool gradient) {
  Expected<void *> memory = scratch(logits.rows * 4, RowSums);
  if (!memory) return propagate(memory);
  float *losses = static_cast<float *>(*memory);
  Status status = kernels.launch(typed("cross_entropy", logits.type), stream(), logits.rows,
                                 CrossEntropyArgs{ref(logits), targets, losses, narrow(logits.columns), gradient});
  return status ? kernels.launch("tw_train_loss", stream(), 1, LossArgs{losses, loss, logits.rows}) : status;
}

} // namespace tilewright::train
