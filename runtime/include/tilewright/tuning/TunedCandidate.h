// One measured candidate: what was tried, where, and how it ended. A row of the tuned store, a line of its export.
#pragma once

#include "tilewright/Export.h"
#include "tilewright/plan/Schedule.h"
#include <compare>
#include <nlohmann/json_fwd.hpp>

namespace tilewright TILEWRIGHT_PUBLIC {

enum class TuningOutcome {
  Ok,            ///< Right and timed.
  Invalid,       ///< The plan was refused before a compiler saw it.
  CompileFailed, ///< The compiler refused it.
  Spills,        ///< It compiles, but keeps registers in memory or serialises its products: not timed.
  WrongResult,   ///< It ran, and its results are not the reference's.
  Crashed,       ///< It ended the process that measured it, or the device refused to go on.
  TimedOut,      ///< It did not end in time.
};

std::string_view toString(TuningOutcome outcome); ///< "ok", "invalid", "compile_failed", "spills", "wrong_result", ...
Expected<TuningOutcome> parseTuningOutcome(std::string_view text);

/// Where and how a time was taken: times of different environments are never compared. Plain texts, each may be empty.
struct TuningEnvironment {
  std::string target;    ///< Target::canonicalText().
  std::string device;    ///< Model of the GPU, or of the CPU with its threads.
  std::string driver;    ///< "CUDA 13.0"; empty on the CPU.
  std::string compiler;  ///< "NVRTC 13.0", "LLVM 22.1.8".
  std::string generator; ///< kGeneratorId.
  std::string policy;    ///< How time is taken: kGpuColdPolicy and its like.

  auto operator<=>(const TuningEnvironment &) const = default;
};

inline constexpr std::string_view kGpuColdPolicy = "events, L2 flushed before each launch";
inline constexpr std::string_view kGpuWarmPolicy = "events, L2 as the launch before left it";
inline constexpr std::string_view kCpuPolicy = "wall clock, caches as the run before left them";

/// Sizes that change from call to call; what is left of a problem is its family.
struct TuningSizes {
  int64_t batch = 1, headsQ = 1, headsKV = 1, seqQ = 1, seqKV = 1;

  explicit TuningSizes(const Problem &problem)
      : batch(problem.batch), headsQ(problem.headsQ), headsKV(problem.headsKV), seqQ(problem.seqQ),
        seqKV(problem.seqKV) {}
  TuningSizes() = default;
  auto operator<=>(const TuningSizes &) const = default;

  /// Sum of |log2| of the ratios of batch * headsKV, seqQ and seqKV: 1 where one of them doubles. Empty tensors are at
  /// infinity from all others.
  double distanceTo(const TuningSizes &other) const;
  std::string text() const; ///< "b2 h16:4 q1024 kv4096"
};

/// Problems of one family run the same code: SHA-256 of role, layout and Problem::constantsText().
std::string tuningFamily(const Problem &problem, KernelRole role);

struct TunedCandidate {
  TuningEnvironment environment;
  Problem problem;
  KernelRole role = KernelRole::Forward; ///< Forward stands for Merge too, Fused for Convert.
  Schedule schedule;

  TuningOutcome outcome = TuningOutcome::Ok;
  double ms = 0; ///< Median. 0 where the outcome is not Ok.
  double fastestMs = 0, slowestMs = 0;
  int repeats = 0;
  bool confirmed = false; ///< Timed again in turns with the best others and the default.
  std::string detail;     ///< Why the outcome is not Ok; one line.
  double clockMhz = 0;    ///< Of the SMs, right after the last launch; 0 unknown.
  int64_t recorded = 0;   ///< Seconds since 1970.
};

/// The environment's fields and "problem", "role", "schedule", "outcome", "ms", ... in one flat object.
void to_json(nlohmann::json &json, const TunedCandidate &candidate);
/// Unknown keys, wrong types and invalid values are errors that name the key.
Expected<TunedCandidate> tunedCandidateFromJson(const nlohmann::json &json);

} // namespace tilewright
