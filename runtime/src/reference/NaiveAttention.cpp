#include "tilewright/reference/NaiveAttention.h"
#include "StandardAttention.h"
#include "tilewright/tensor/Half.h"
#include <algorithm>

namespace tilewright {
namespace {

template <class Round> void roundAll(float *values, int64_t count, const Round &round) {
  for (int64_t i = 0; i < count; ++i)
    values[i] = round(values[i]);
}

void roundTo(DType dtype, float *values, int64_t count) {
  if (dtype == DType::F16) roundAll(values, count, [](float x) { return floatFromHalf(halfFromFloat(x)); });
  if (dtype == DType::BF16) roundAll(values, count, [](float x) { return floatFromBFloat16(bfloat16FromFloat(x)); });
}

/// As roundTo, but a finite value stays finite: a score beyond fp16's range must not turn into a mask, or the error
/// of this computation would measure nothing.
void roundWithin(DType dtype, float *values, int64_t count) {
  if (dtype == DType::F32) return;
  const auto limit = static_cast<float>(maxFinite(elementType(dtype)));
  for (int64_t i = 0; i < count; ++i)
    if (std::isfinite(values[i])) values[i] = std::clamp(values[i], -limit, limit);
  roundTo(dtype, values, count);
}

struct NaiveArithmetic {
  using Real = float;
  static constexpr ElementType kResultType = ElementType::F32;
  static constexpr bool kEstimatesNoise = false;
  DType dtype;
  NaiveRounding rounding;

  void roundMatrix(float *values, int64_t count) const {
    if (rounding == NaiveRounding::Matrices) roundWithin(dtype, values, count);
  }
  void roundOperand(float *values, int64_t count) const { roundWithin(dtype, values, count); }
  void roundResult(float *values, int64_t count) const { roundTo(dtype, values, count); }
};

} // namespace

Expected<AttentionResult> naiveAttention(const Problem &problem, const AttentionInputs &inputs,
                                         const AttentionOptions &options, NaiveRounding rounding) {
  return StandardAttention<NaiveArithmetic>::compute(problem, inputs, options, {problem.dtype, rounding});
}

} // namespace tilewright
