// Object -> callable code, by LLVM's in-process linker (ORC and JITLink).
#include "tilewright/cpu/HostObject.h"

#include "llvm/Config/llvm-config.h"
#include "llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h"
#include "llvm/ExecutionEngine/Orc/SelfExecutorProcessControl.h"
#include "llvm/ExecutionEngine/Orc/TaskDispatch.h"
#include <fmt/format.h>

namespace tilewright {

namespace {

using Entry = void (*)(const KernelArgs *args, int64_t begin, int64_t end, void *scratch);

class JitCode : public HostCode {
public:
  explicit JitCode(std::unique_ptr<llvm::orc::ExecutorProcessControl> process)
      : session(std::move(process)), layer(session) {
    // By default a session prints its errors; what lookup returns says the same.
    session.setErrorReporter([](llvm::Error error) { llvm::consumeError(std::move(error)); });
  }
  ~JitCode() override { llvm::consumeError(session.endSession()); }

  llvm::Error load(std::span<const char> object, const std::string &symbol) {
    llvm::Expected<llvm::orc::JITDylib &> library = session.createJITDylib("kernel");
    if (!library) return library.takeError();
    llvm::StringRef bytes(object.data(), object.size());
    if (llvm::Error error = layer.add(*library, llvm::MemoryBuffer::getMemBufferCopy(bytes, symbol))) return error;
    llvm::Expected<llvm::orc::ExecutorSymbolDef> found = session.lookup({&*library}, session.intern(symbol));
    if (!found) return found.takeError();
    entry = found->getAddress().toPtr<Entry>();
    return llvm::Error::success();
  }

  void run(const KernelArgs &args, int64_t begin, int64_t end, void *scratch) const override {
    entry(&args, begin, end, scratch);
  }

private:
  llvm::orc::ExecutionSession session;
  llvm::orc::ObjectLinkingLayer layer;
  Entry entry = nullptr;
};

tl::unexpected<Error> failLoad(const std::string &symbol, llvm::Error error) {
  return fail(Stage::Load,
              fmt::format("CPU kernel {}: the object cannot be linked: {}", symbol, llvm::toString(std::move(error))),
              "If it came from the cache, `tilewright cache verify` finds damaged entries.");
}

} // namespace

Expected<std::unique_ptr<HostCode>> loadObject(std::span<const char> object, const std::string &symbol) {
  // Linking runs on the calling thread: many threads may load at once, each in a session of its own.
  auto process =
      llvm::orc::SelfExecutorProcessControl::Create(nullptr, std::make_unique<llvm::orc::InPlaceTaskDispatcher>());
  if (!process) return failLoad(symbol, process.takeError());
  auto code = std::make_unique<JitCode>(std::move(*process));
  if (llvm::Error error = code->load(object, symbol)) return failLoad(symbol, std::move(error));
  return std::unique_ptr<HostCode>(std::move(code));
}

std::string hostCompilerVersion() { return "LLVM " LLVM_VERSION_STRING; }

} // namespace tilewright
