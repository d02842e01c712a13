// The rule that decides whether a result is right.
//
// An error against the double-precision reference must stay within twice the *yardstick*, the largest of
//   * the error of the naive computation in the same dtype (NaiveAttention.h),
//   * one unit in the last place, in the dtype, of the largest reference value: what storing the result costs,
//   * what rounding must be granted in any order of work (RoundingNoise).
// The last two matter where the naive computation happens to be exact or the sample is a handful of values; on ordinary
// data the first is the largest or of the same size. Non-finite values must stand exactly where the reference's are.
// The field's absolute rule (2e-5 for fp32, 6e-3 for fp16, 3e-2 for bf16, times max(1, max|reference|)) is reported
// beside it.
#pragma once

#include "tilewright/reference/Attention.h"
#include <nlohmann/json_fwd.hpp>
#include <span>

namespace tilewright {

struct ErrorFigures {
  double maxAbs = 0;          ///< Largest |actual - reference| where the reference is finite.
  double rms = 0;             ///< Root of the mean square of those.
  double maxRef = 0;          ///< Largest finite |reference|.
  double naiveMaxAbs = 0;     ///< The naive computation's largest error.
  double yardstick = 0;       ///< As above; never below naiveMaxAbs.
  double relativeToNaive = 0; ///< maxAbs / yardstick; 0 where both are 0.
  double fieldTolerance = 0;
  bool withinFieldRule = true;
  int64_t nonFiniteMismatches = 0; ///< Elements that are finite on one side only, or differ in kind.
  int64_t elements = 0;            ///< Compared elements.
  int64_t worst[4] = {0, 0, 0, 0}; ///< (batch, head, row, dim) of maxAbs, or of the first mismatch if there is one.
  bool ok = true;                  ///< nonFiniteMismatches == 0 && relativeToNaive <= limit
};

/// {"max_abs": ..., "rms": ..., "max_ref": ..., "naive_max_abs": ..., "relative_to_naive": ...,
///  "nonfinite_mismatches": ..., "within_field_rule": ..., "ok": ...}
void to_json(nlohmann::json &json, const ErrorFigures &figures);

struct CompareOptions {
  DType dtype = DType::F32;      ///< The problem's: selects the field rule.
  std::span<const int64_t> rows; ///< Rows of `actual` that the reference's rows stand for; empty means the same.
  double noise = 0;              ///< The quantity's RoundingNoise.
  double limit = 2;              ///< Accepted multiple of the yardstick.
  /// A reference of +-infinity is met only by the same infinity (LSE: -infinity says that a row is empty). Otherwise
  /// any non-finite value meets it: infinite input times a weight that underflows is NaN or infinity by the precision.
  bool strictInfinities = false;
};

/// `reference` and `naive` have one shape; `actual` has it too but for the rows. Values of the reference that the type
/// of `actual` cannot hold count as infinite.
Expected<ErrorFigures> compare(const TensorView &actual, const TensorView &reference, const TensorView &naive,
                               const CompareOptions &options);

/// The field's absolute tolerance of a dtype.
double fieldTolerance(DType dtype);

} // namespace tilewright
