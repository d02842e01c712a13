// Tile-level IR -> LLVM IR -> object.
#include "tilewright/cpu/HostObject.h"

#include "ConvertToLlvm.h"
#include "HostTarget.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/Passes.h"
#include "tilewright/passes/Passes.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/Object/ObjectFile.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include <fmt/format.h>

using namespace mlir;

namespace tilewright {

namespace {

/// Keeps the diagnostics of a context while it lives.
class DiagnosticLog {
public:
  explicit DiagnosticLog(MLIRContext *context)
      : handler(context, [this](Diagnostic &diagnostic) {
          text += diagnostic.str() + "\n";
          return success();
        }) {}
  std::string text;

private:
  ScopedDiagnosticHandler handler;
};

tl::unexpected<Error> failCompile(const std::string &symbol, std::string_view what, std::string log) {
  std::string message = fmt::format("CPU kernel {}: {}", symbol, what);
  return fail(Stage::Compile, std::move(message), "", std::move(log));
}

/// The vector code is final as it comes from MLIR; what is left to do is scalar: addresses, invariants, branches.
void optimize(llvm::Module &module, llvm::TargetMachine &machine) {
  llvm::PassBuilder builder(&machine);
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graph;
  llvm::ModuleAnalysisManager modules;
  // There is no C library to call, so no loop may become memset and no arithmetic a libm function.
  llvm::TargetLibraryInfoImpl library(machine.getTargetTriple());
  library.disableAllFunctions();
  functions.registerPass([&] { return llvm::TargetLibraryAnalysis(library); });
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(graph);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, graph, modules);

  llvm::FunctionPassManager passes;
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::SimplifyCFGPass());
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions()), /*UseMemorySSA=*/true));
  passes.addPass(llvm::EarlyCSEPass());
  for (llvm::Function &function : module)
    if (!function.isDeclaration()) passes.run(function, functions);
}

bool emit(llvm::Module &module, llvm::TargetMachine &machine, llvm::CodeGenFileType type,
          llvm::SmallVectorImpl<char> &bytes) {
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr, type)) return false;
  passes.run(module);
  return true;
}

/// Names of symbols that an object expects from elsewhere; a parse failure counts as one.
std::string undefinedSymbols(llvm::ArrayRef<char> bytes) {
  llvm::MemoryBufferRef buffer(llvm::StringRef(bytes.data(), bytes.size()), "kernel");
  auto object = llvm::object::ObjectFile::createObjectFile(buffer);
  if (!object) return llvm::toString(object.takeError());
  std::string names;
  for (const llvm::object::SymbolRef &symbol : (*object)->symbols()) {
    llvm::Expected<uint32_t> flags = symbol.getFlags();
    llvm::Expected<llvm::StringRef> name = symbol.getName();
    if (!flags || !name) {
      llvm::consumeError(flags.takeError());
      llvm::consumeError(name.takeError());
      continue;
    }
    if ((*flags & llvm::object::SymbolRef::SF_Undefined) && !name->empty()) names += " " + name->str();
  }
  return names;
}

} // namespace

Expected<HostObject> compileToObject(ModuleOp module, const Target &target, const std::string &symbol,
                                     HostTexts *texts) {
  auto machine = cpu::createTargetMachine(target.cpuLevel);
  if (!machine) return propagate(machine);

  MLIRContext *context = module.getContext();
  DiagnosticLog diagnostics(context);
  DialectRegistry registry;
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  context->appendDialectRegistry(registry);

  PassManager passes(context, "builtin.module");
  LowerToCpuOptions options;
  options.vectorBits = target.vectorBits;
  passes.addPass(createLowerToCpu(options));
  passes.addPass(createCSEPass());
  if (failed(passes.run(module))) return failCompile(symbol, "lowering to vector code failed", diagnostics.text);
  auto function = module.lookupSymbol<func::FuncOp>(symbol);
  if (!function) return failCompile(symbol, "the module holds no kernel of this name", diagnostics.text);
  HostObject result;
  result.scratchBytes = function->getAttrOfType<IntegerAttr>("tw.scratch_bytes").getInt();
  function->removeAttr("tw.scratch_bytes");
  if (texts) {
    llvm::raw_string_ostream stream(texts->lowered);
    module.print(stream);
  }

  if (failed(cpu::convertToLlvm(module))) return failCompile(symbol, "conversion to LLVM failed", diagnostics.text);
  llvm::LLVMContext llvmContext;
  std::unique_ptr<llvm::Module> code = translateModuleToLLVMIR(module, llvmContext, symbol);
  if (!code) return failCompile(symbol, "translation to LLVM IR failed", diagnostics.text);
  code->setTargetTriple((*machine)->getTargetTriple());
  code->setDataLayout((*machine)->createDataLayout());
  for (llvm::Function &f : *code) {
    f.addFnAttr(llvm::Attribute::NoUnwind);
    f.addFnAttr("prefer-vector-width", std::to_string(target.vectorBits));
    f.addFnAttr("min-legal-vector-width", std::to_string(target.vectorBits));
    f.addFnAttr("no-builtins");
  }
  optimize(*code, **machine);
  if (texts) {
    llvm::raw_string_ostream stream(texts->llvm);
    code->print(stream, nullptr);
    llvm::SmallVector<char> text;
    std::unique_ptr<llvm::Module> copy = llvm::CloneModule(*code);
    if (emit(*copy, **machine, llvm::CodeGenFileType::AssemblyFile, text))
      texts->assembly.assign(text.begin(), text.end());
  }

  llvm::SmallVector<char> bytes;
  if (!emit(*code, **machine, llvm::CodeGenFileType::ObjectFile, bytes))
    return failCompile(symbol, "LLVM cannot write objects for " + (*machine)->getTargetTriple().str(), "");
  if (std::string missing = undefinedSymbols(bytes); !missing.empty())
    return failCompile(symbol, "generated code refers to symbols outside itself:" + missing, "");
  result.bytes.assign(bytes.begin(), bytes.end());
  return result;
}

} // namespace tilewright
