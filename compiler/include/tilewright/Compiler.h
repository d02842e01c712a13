// The compiler as the runtime sees it: plans in, CUDA source or CPU objects out.
#pragma once

#include "tilewright/CodeGenerator.h"
#include "tilewright/passes/Pipeline.h"

namespace tilewright {

class Compiler : public CodeGenerator {
public:
  Expected<GeneratedCode> generate(const KernelPlan &plan) override { return generate(plan, {}); }
  Expected<std::unique_ptr<HostCode>> loadHostCode(std::span<const char> object, const std::string &symbol) override;

  /// What a person looks at on the way: every stage's IR under its name ("problem", "classify-tiles", "tile", then
  /// "schedule-sm80" or "lower-to-cpu"), and for the CPU "llvm" and "assembly".
  using TextObserver = std::function<void(std::string_view stage, std::string_view text)>;
  Expected<GeneratedCode> generate(const KernelPlan &plan, const TextObserver &observer);

  /// "LLVM 22.1.8": part of a CPU kernel's cache key.
  static std::string hostCompiler();
};

} // namespace tilewright
