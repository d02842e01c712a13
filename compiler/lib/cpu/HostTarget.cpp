#include "HostTarget.h"

#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/TargetParser/Host.h"
#include <fmt/format.h>
#include <mutex>

namespace tilewright::cpu {

Expected<std::unique_ptr<llvm::TargetMachine>> createTargetMachine(const std::string &level) {
  static std::once_flag initialized;
  std::call_once(initialized, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
  llvm::Triple triple(llvm::sys::getDefaultTargetTriple());
  std::string message;
  const llvm::Target *target = llvm::TargetRegistry::lookupTarget(triple, message);
  if (!target || !triple.isX86_64())
    return fail(Stage::Compile, fmt::format("the CPU target needs an x86-64 host, found {}", triple.str()),
                "Use a CUDA target on this machine.", message);
  // LLVM's generic v4 model prefers 256-bit vectors, after early parts that slowed down for 512-bit ones.
  std::string features = level == "x86-64-v4" ? "-prefer-256-bit" : "";
  // Level 1: the vector code is scheduled as it stands; higher levels take longer and give the same speed.
  std::unique_ptr<llvm::TargetMachine> machine(
      target->createTargetMachine(triple, level, features, llvm::TargetOptions(), llvm::Reloc::PIC_,
                                  llvm::CodeModel::Small, llvm::CodeGenOptLevel::Less));
  if (!machine)
    return fail(Stage::Compile, fmt::format("LLVM has no code generator for {} {}", triple.str(), level), "");
  return machine;
}

} // namespace tilewright::cpu
