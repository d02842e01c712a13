// Seeded random tensors. Every element is a pure function of (seed, stream, its logical index (batch, head, row, dim)),
// computed with IEEE additions, multiplications, divisions and square roots alone: the same on every machine, in every
// layout, with any number of threads. (A compiler that contracts to FMA may differ in the last bit.)
#pragma once

#include "tilewright/tensor/Tensor.h"

namespace tilewright {

/// 64 well-mixed bits, a function of (seed, stream, index) (SplitMix64's finaliser, Steele et al. 2014).
uint64_t randomBits(uint64_t seed, uint64_t stream, uint64_t index);

/// Fills with standard normal values (Box-Muller) times `scale`, rounded to the element type. Streams of one seed are
/// independent. A tensor that is not valid is left alone.
Status fillNormal(Tensor &tensor, uint64_t seed, uint64_t stream, double scale = 1);

/// What makes attention kernels fail while normal values do not.
enum class DataPattern {
  Normal,           ///< q, k, v, dO standard normal
  OutlierChannels,  ///< every 16th channel of q and k times 50: a softmax that saturates, scores of hundreds
  StrongFirstToken, ///< key 0 attracts every query (an attention sink): one weight near 1, the others tiny
  AllEqual,         ///< every q and k element the same: all scores equal, O is the mean of the visible v
  HugeNegative,     ///< every score near -120: LSE below -88, where exp(-LSE) leaves fp32
};

std::string_view toString(DataPattern pattern); ///< "normal", "outliers", "sink", "equal", "negative"
/// The error lists the accepted names.
Expected<DataPattern> parseDataPattern(std::string_view text);

struct RandomTensors {
  Tensor q, k, v;
  Tensor dO; ///< Only for Direction::Backward.
};

/// Inputs of a problem in its dtype and layout. Deterministic for (problem's shape, seed, pattern).
Expected<RandomTensors> randomTensors(const Problem &problem, uint64_t seed, DataPattern pattern = DataPattern::Normal);

} // namespace tilewright
