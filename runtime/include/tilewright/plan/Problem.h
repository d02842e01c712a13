// What is to be computed: O = softmax(mask(score(scale * Q K^T))) V, and on request its gradients.
// A plain value: comparable, JSON both ways, canonical text. It says nothing about how (Schedule) or where (Target).
#pragma once

#include "tilewright/Export.h"
#include "tilewright/plan/DType.h"
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tilewright TILEWRIGHT_PUBLIC {

enum class Direction { Forward, Backward };

/// How a table named in a mask or score expression is read: name[q], name[k], name[h], name[b] or name[b, k] etc.
enum class TableAxis { Q, K, H, B };

/// Type of a table: int32 or float32 elements, one axis, or batch first and then another axis.
struct TableSpec {
  std::string name;
  bool isFloat = false;
  std::vector<TableAxis> axes; ///< 1 or 2 entries; with 2 the first is B.
  bool operator==(const TableSpec &) const = default;
};

/// Keys visible around the diagonal, both inclusive: sk - sq + q - left <= k <= sk - sq + q + right; -1 is unbounded.
struct Window {
  int64_t left = -1, right = -1;
  bool operator==(const Window &) const = default;
};

/// Longest sequence on either axis. Keeps q + sk - sq + (a window bound) inside int32.
inline constexpr int64_t kMaxSequence = int64_t{1} << 28;

/// Most heads on either side.
inline constexpr int64_t kMaxHeads = int64_t{1} << 16;
/// Most batch entries: a block's coordinates are 32-bit.
inline constexpr int64_t kMaxBatch = INT32_MAX;
/// Largest head dimension of any target.
inline constexpr int64_t kMaxHeadDim = 512;

struct Problem {
  // Run-time arguments of a kernel: changing them never recompiles.
  int64_t batch = 1;
  int64_t headsQ = 1, headsKV = 1; ///< Query head h reads kv head h / (headsQ / headsKV); the ratio is a constant.
  int64_t seqQ = 1, seqKV = 1;     ///< 0 is legal: no keys give O = 0 and LSE = -inf.
  std::optional<double> scale;     ///< 1/sqrt(dimQK) unless given.

  // Compile-time constants of a kernel.
  int64_t dimQK = 64, dimV = 64;
  DType dtype = DType::BF16;
  Direction direction = Direction::Forward;
  bool causal = false;             ///< Bottom-right aligned: k <= q + sk - sq.
  Window window;                   ///< With causal, right counts as min(right, 0).
  double softcap = 0;              ///< cap * tanh(s / cap) before the mask and before `score`; 0 is none.
  std::string mask;                ///< Boolean expression, and-ed with causal and window; empty is none.
  std::string score;               ///< Number expression of the scaled (and capped) score s; empty is s.
  std::vector<TableSpec> tables;   ///< Tables that mask and score read, sorted by (name, axes): `doc[q] == doc[k]`
                                   ///< has two entries named doc, one a reading, bound to the same memory.

  // Memory layout: run-time strides, kept here because it says how the caller's tensors lie.
  Layout layout = Layout::BSHD;

  bool operator==(const Problem &) const = default;

  int64_t groupSize() const { return headsKV ? headsQ / headsKV : 0; }
  double effectiveScale() const;

  /// Checks every field; the error names the field, its value and the accepted range.
  Status validate() const;

  // The two below want a valid problem: a mask or score that does not parse is passed through as it is.

  /// The whole mask as one canonical expression (causal, window and mask, and-ed, each condition once); empty when
  /// everything is visible. Spellings that mean the same bounds give the same text.
  std::string fullMask() const;
  /// Whether the mask reads h, by name or as a table's subscript, and so may differ between heads.
  bool maskReadsHead() const;
  /// The whole score function as one canonical expression (softcap, then score); empty when it is s itself.
  std::string fullScore() const;

  /// The compile-time constants alone, one `name=value` a line in a fixed order: what generated code depends on.
  /// The direction is not among them: a kernel's role says what is computed.
  std::string constantsText() const;
};

/// The tables that a mask and a score read, as Problem::tables lists them; element types, which expressions do not say,
/// are int32.
Expected<std::vector<TableSpec>> tablesRead(const std::string &mask, const std::string &score);

void to_json(nlohmann::json &json, const Problem &problem);
/// Unknown keys, wrong types and invalid values are errors that name the key.
Expected<Problem> problemFromJson(const nlohmann::json &json);

/// FLOPs by the field's convention, 4*B*H*pairs*(dqk+dv)/2 forward and 2.5 times that backward, where pairs is the
/// number of (q, k) pairs the mask lets through (counted by the caller; Sq*Sk without a mask).
double attentionFlops(const Problem &problem, double visiblePairs);

} // namespace tilewright
