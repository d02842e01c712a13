// What `tilewright bench attention` measures: a grid over head dims, masks and lengths, and named cases.
#pragma once

#include "tilewright/plan/Problem.h"
#include <string>
#include <vector>

namespace tilewright::bench {

/// Which rate a case is judged by.
enum class Rate {
  Flops, ///< TFLOP/s
  Bytes, ///< GB/s of K and V, for decode: one pass over them is all the work there is
};

struct BenchCase {
  std::string set;  ///< "table" or "hopper"
  std::string name; ///< "d128 causal 4096"
  std::string mask; ///< "none", "causal" or "window:N"
  Problem problem;
  Rate rate = Rate::Flops;

  /// The lengths as one word: "4096" or "1024:62208".
  std::string lengths() const;
  /// The head dims as one word: "128" or "192:128".
  std::string dims() const;
  double flops() const;
  double kvBytes() const; ///< Of K and V, all heads and batch entries.
  /// TFLOP/s or GB/s of a run that takes `ms`.
  double rateOf(double ms) const;
};

/// As the options state it, unparsed.
struct GridOptions {
  std::string cases = "table"; ///< table, hopper, or both with a comma.
  std::string dims = "64,128,256", seqs = "512,1024,2048,4096,8192,16384", masks = "none,causal", heads = "auto";
  std::string dtype = "bf16";
  int64_t tokens = 16384; ///< batch * seq
  int64_t hidden = 2048;  ///< heads * dim with heads = auto
  bool backward = false;
};

/// The cases in the order they are measured: by dims, mask and length, then the named ones. Errors name the option and
/// what it accepts.
Expected<std::vector<BenchCase>> benchCases(const GridOptions &options);

/// Pairs (q, k) of one head that FLOPs are counted over. No mask: Sq * Sk. Causal with Sq == Sk: half of that, the
/// field's convention. Everything else: exactly the visible pairs. Only causal and window are counted, not mask
/// expressions.
double countedPairs(const Problem &problem);

} // namespace tilewright::bench
