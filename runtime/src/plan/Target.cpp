#include "tilewright/plan/Target.h"
#include "JsonObject.h"
#include "tilewright/ThreadPool.h"
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright {

namespace {

constexpr int64_t kKiB = 1024;

/// Shared memory in KiB from the CUDA C++ programming guide's table of technical specifications per compute capability:
/// the most a block may opt in to, and what an SM has (1 KiB a block is the system's).
Target cuda(std::string name, int capability, int64_t blockKiB, int64_t smKiB, int smCount) {
  Target target;
  target.kind = Target::Kind::Cuda;
  target.name = std::move(name);
  target.computeCapability = capability;
  target.sharedBytesPerBlock = blockKiB * kKiB;
  target.sharedBytesPerSM = smKiB * kKiB;
  target.smCount = smCount;
  return target;
}

struct CpuLevel {
  const char *name;
  int vectorBits;
};

/// Best first; the psABI's micro-architecture levels.
constexpr CpuLevel kCpuLevels[] = {{"x86-64-v4", 512}, {"x86-64-v3", 256}, {"x86-64-v2", 128}};

int hostVectorBits() {
  // The features that tell the levels apart, rather than the levels' names: older compilers do not know those.
  __builtin_cpu_init();
  bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
            __builtin_cpu_supports("bmi2");
  bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl");
  return v4 ? 512 : v3 ? 256 : 128;
}

Target cpu(const CpuLevel &level) {
  Target target;
  target.cpuLevel = level.name;
  target.vectorBits = level.vectorBits;
  target.threads = ThreadPool::hardwareThreads();
  return target;
}

std::string acceptedNames() {
  std::vector<std::string> names{"cpu"};
  for (const Target &target : Target::cudaTargets())
    names.push_back(target.name);
  for (const CpuLevel &level : kCpuLevels)
    names.push_back(level.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

} // namespace

const std::vector<Target> &Target::cudaTargets() {
  static const std::vector<Target> targets = {
      cuda("sm_80", 80, 163, 164, 108),   // A100
      cuda("sm_86", 86, 99, 100, 84),     // A40, RTX 3090 Ti
      cuda("sm_87", 87, 163, 164, 16),    // Jetson Orin
      cuda("sm_89", 89, 99, 100, 142),    // L40S
      cuda("sm_90", 90, 227, 228, 132),   // H100, H200
      cuda("sm_90a", 90, 227, 228, 132),  // the same, with wgmma and setmaxnreg
      cuda("sm_100", 100, 227, 228, 148), // B200
      cuda("sm_120", 120, 99, 100, 170),  // RTX 5090
  };
  return targets;
}

Target Target::hostCpu() {
  static const Target host = cpu(*std::find_if(std::begin(kCpuLevels), std::end(kCpuLevels), [](const CpuLevel &level) {
    return level.vectorBits == hostVectorBits();
  }));
  return host;
}

Expected<Target> Target::parse(std::string_view name) {
  if (name == "cpu") return hostCpu();
  for (const Target &target : cudaTargets())
    if (target.name == name) return target;
  for (const CpuLevel &level : kCpuLevels) {
    if (level.name != name) continue;
    if (level.vectorBits > hostCpu().vectorBits)
      return fail(Stage::Input, fmt::format("target: {} needs more than this host has ({})", name, hostCpu().cpuLevel));
    return cpu(level);
  }
  return fail(Stage::Input, fmt::format("target: unknown target \"{}\"", name),
              fmt::format("accepted: {}", acceptedNames()));
}

Expected<Target> Target::forComputeCapability(int major, int minor) {
  const Target *best = nullptr;
  // The last one that fits: sm_90a comes after sm_90.
  for (const Target &target : cudaTargets())
    if (target.computeCapability <= major * 10 + minor) best = &target;
  if (best) return *best;
  return fail(Stage::Input,
              fmt::format("target: a device of compute capability {}.{} is too old: kernels need 8.0 (Ampere) or newer",
                          major, minor),
              "--target cpu works without a GPU");
}

std::string Target::canonicalText() const { return isCpu() ? name + " " + cpuLevel : name; }

void to_json(nlohmann::json &json, const Target &target) {
  if (target.isCpu()) {
    json = {{"name", target.name},
            {"cpu_level", target.cpuLevel},
            {"vector_bits", target.vectorBits},
            {"threads", target.threads}};
    return;
  }
  json = {{"name", target.name},
          {"compute_capability", target.computeCapability},
          {"shared_bytes_per_block", target.sharedBytesPerBlock},
          {"shared_bytes_per_sm", target.sharedBytesPerSM},
          {"registers_per_sm", target.registersPerSM},
          {"registers_per_thread", target.registersPerThread},
          {"max_threads_per_block", target.maxThreadsPerBlock},
          {"sm_count", target.smCount}};
}

namespace {

Expected<Target> cpuFromJson(JsonObject &object) {
  Target target = Target::hostCpu();
  object.read("cpu_level", target.cpuLevel);
  auto level = std::find_if(std::begin(kCpuLevels), std::end(kCpuLevels),
                            [&](const CpuLevel &candidate) { return candidate.name == target.cpuLevel; });
  if (level == std::end(kCpuLevels))
    object.refuse("cpu_level",
                  fmt::format("expected x86-64-v2, x86-64-v3 or x86-64-v4, found \"{}\"", target.cpuLevel));
  else
    target.vectorBits = level->vectorBits;
  int bits = target.vectorBits;
  object.read("vector_bits", bits);
  if (bits != target.vectorBits)
    object.refuse("vector_bits", fmt::format("{} has {}, found {}", target.cpuLevel, target.vectorBits, bits));
  object.read("threads", target.threads);
  if (target.threads < 1) object.refuse("threads", fmt::format("expected at least 1, found {}", target.threads));
  if (Status status = object.finish(); !status) return propagate(status);
  return target;
}

} // namespace

Expected<Target> targetFromJson(const nlohmann::json &json) {
  JsonObject object(json, "target");
  std::string name;
  object.read("name", name);
  if (name == "cpu") return cpuFromJson(object);
  Target target;
  const auto &known = Target::cudaTargets();
  auto found =
      std::find_if(known.begin(), known.end(), [&](const Target &candidate) { return candidate.name == name; });
  if (found != known.end())
    target = *found;
  else
    object.refuse("name", fmt::format("unknown target \"{}\"", name), fmt::format("accepted: {}", acceptedNames()));
  object.read("sm_count", target.smCount);
  if (target.smCount < 1) object.refuse("sm_count", fmt::format("expected 1 or more, found {}", target.smCount));
  auto fixed = [&](const char *key, int64_t limit) {
    int64_t value = limit;
    object.read(key, value);
    if (value != limit) object.refuse(key, fmt::format("{} has {}, found {}", name, limit, value));
  };
  fixed("compute_capability", target.computeCapability);
  fixed("shared_bytes_per_block", target.sharedBytesPerBlock);
  fixed("shared_bytes_per_sm", target.sharedBytesPerSM);
  fixed("registers_per_sm", target.registersPerSM);
  fixed("registers_per_thread", target.registersPerThread);
  fixed("max_threads_per_block", target.maxThreadsPerBlock);
  if (Status status = object.finish(); !status) return propagate(status);
  return target;
}

} // namespace tilewright
