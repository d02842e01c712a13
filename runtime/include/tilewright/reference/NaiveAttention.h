// The yardstick: standard attention as a framework computes it in the problem's dtype. The scores, dP, P and dS are
// whole matrices in the dtype, so each is rounded to it; sums of products are accumulated in fp32, one after the other;
// the results are rounded to the dtype (LSE stays fp32). For fp32 everything is plain fp32.
#pragma once

#include "tilewright/reference/Attention.h"

namespace tilewright {

/// What is rounded to the dtype on the way.
enum class NaiveRounding {
  Matrices,    ///< S, dP, P and dS: three-step attention in a framework.
  OperandsOnly ///< P and dS, which tensor cores read in the dtype; S and dP stay fp32. A stricter yardstick, and the
               ///< sharper one where scores are large.
};

/// Results are F32 tensors, which hold every value of the dtype exactly.
Expected<AttentionResult> naiveAttention(const Problem &problem, const AttentionInputs &inputs,
                                         const AttentionOptions &options = {},
                                         NaiveRounding rounding = NaiveRounding::Matrices);

} // namespace tilewright
