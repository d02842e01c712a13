// Where a kernel runs, with the limits that a Schedule must respect.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/Export.h"
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tilewright TILEWRIGHT_PUBLIC {

struct Target {
  enum class Kind { Cpu, Cuda };
  Kind kind = Kind::Cpu;
  /// "cpu", "sm_80", "sm_90a", ...: what --target takes.
  std::string name = "cpu";

  // CUDA. Limits of the architecture (CUDA C++ programming guide, technical specifications per compute capability).
  int computeCapability = 0;         ///< 80, 86, 87, 89, 90, 100, 120.
  int64_t sharedBytesPerBlock = 0;   ///< Opt-in limit of dynamic shared memory a block.
  int64_t sharedBytesPerSM = 0;
  int64_t registersPerSM = 65536;
  int registersPerThread = 255;
  int maxThreadsPerBlock = 1024;
  int smCount = 0;                   ///< A typical part's; the device's own where one is present.

  // CPU. Code is generated for an x86-64 micro-architecture level, so a cached kernel serves every host of the level.
  std::string cpuLevel;              ///< "x86-64-v4", "x86-64-v3", "x86-64-v2".
  int vectorBits = 0;                ///< 512, 256 or 128.
  int threads = 1;                   ///< That run a kernel. Defaults keep them busy; code does not depend on them.

  bool operator==(const Target &) const = default;
  bool isCpu() const { return kind == Kind::Cpu; }

  /// Name of an architecture, "cpu" (this host), or an x86-64 level that this host has ("x86-64-v3"). "sm_90" means
  /// sm_90a's machine without its architecture-specific instructions. The error lists the accepted names.
  static Expected<Target> parse(std::string_view name);
  static Target hostCpu();
  /// All CUDA targets that kernels are emitted for, oldest first.
  static const std::vector<Target> &cudaTargets();
  /// The best target for a device of this compute capability: 9.0 -> sm_90a, 8.6 -> sm_86, newer unknown -> nearest
  /// older (whose cubin it loads only within the same major version; NVIDIA's binary compatibility rule).
  static Expected<Target> forComputeCapability(int major, int minor);

  /// What generated code depends on: name, and for the CPU its level.
  std::string canonicalText() const;
};

void to_json(nlohmann::json &json, const Target &target);
/// Limits in the text must be the architecture's own, but for the SM count, which is the device's. A CPU level may be
/// another host's; Target::hostCpu() says what runs here. Threads that are left out are this host's.
Expected<Target> targetFromJson(const nlohmann::json &json);

} // namespace tilewright
