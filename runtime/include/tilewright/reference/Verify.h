// One call that checks a kernel's results against the double-precision reference, with the naive computation as the
// yardstick.
#pragma once

#include "tilewright/reference/Compare.h"
#include "tilewright/reference/NaiveAttention.h"
#include <optional>

namespace tilewright {

/// What kernels returned. Those that are not valid are not checked.
struct AttentionOutputs {
  TensorView o, lse, dQ, dK, dV;
};

struct VerifyOptions {
  /// At most this many query rows a head, for long sequences; 0 is all. With fewer than all, dK and dV are not checked.
  int64_t rows = 0;
  uint64_t seed = 0; ///< Chooses the rows.
  int threads = 0;
  double limit = 2;
  NaiveRounding naive = NaiveRounding::Matrices;
};

struct Verification {
  std::optional<ErrorFigures> o, lse, dQ, dK, dV; ///< Empty: not checked.
  std::vector<int64_t> rows;                      ///< The rows that were checked; empty means all.
  int64_t emptyRows = 0;                          ///< Checked (batch, head, row)s that see no key.
  bool ok = true;

  /// One sentence about the first result that is wrong: figures and place. Empty when all are right.
  std::string failure() const;
};

/// {"o": {...}, "lse": {...}, ..., "rows_checked": n or "all", "ok": ...}; figures that were not checked are left out.
void to_json(nlohmann::json &json, const Verification &verification);

/// The reference and the yardstick of one problem and its inputs, computed once, for any number of results.
class AttentionVerifier {
public:
  static Expected<AttentionVerifier> make(const Problem &problem, const AttentionInputs &inputs,
                                          const VerifyOptions &options = {});
  Expected<Verification> verify(const AttentionOutputs &outputs) const;

private:
  DType dtype = DType::F32;
  double limit = 2;
  AttentionResult reference, naive;
};

Expected<Verification> verifyAttention(const Problem &problem, const AttentionInputs &inputs,
                                       const AttentionOutputs &outputs, const VerifyOptions &options = {});

} // namespace tilewright
