#include "NcclLibrary.h"
#include <fmt/format.h>

namespace tilewright::dist {
namespace {

/// The first with ncclMemAlloc and ncclCommRegister.
constexpr int kOldest = 21900;

} // namespace

Expected<std::shared_ptr<const NcclLibrary>> NcclLibrary::open(const std::string &overridePath,
                                                               const std::string &libraryPath) {
  cuda::LibrarySearch search;
  search.what = "NCCL";
  search.overridePath = overridePath;
  search.overrideVariable = "TILEWRIGHT_NCCL";
  search.names = {"libnccl.so.2"};
  search.directories = cuda::cudaLibraryDirectories(libraryPath, "");
  search.hint = "install NCCL 2.19 or newer (NVIDIA's package libnccl2) or let TILEWRIGHT_NCCL name it; without it "
                "ranks can communicate over Gloo";
  Expected<cuda::DynamicLibrary> opened = cuda::DynamicLibrary::open(search);
  if (!opened) return propagate(opened);
  std::shared_ptr<NcclLibrary> made(new NcclLibrary(std::move(*opened)));
  if (Status status = made->resolve(); !status) return propagate(status);
  return made;
}

Status NcclLibrary::resolve() {
  const char *missing = nullptr;
  auto load = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
    if (!function && !missing) missing = name;
  };
  load(functions.getVersion, "ncclGetVersion");
  if (missing) return fail(Stage::Load, fmt::format("{} is not NCCL: it has no {}", library.path(), missing));
  if (functions.getVersion(&version) != kNcclSuccess || version < kOldest)
    return fail(Stage::Load, fmt::format("{} is {}, expected NCCL 2.19 or newer", library.path(), versionText()),
                "install a newer NCCL or let TILEWRIGHT_NCCL name one");
  load(functions.getErrorString, "ncclGetErrorString");
  load(functions.getLastError, "ncclGetLastError");
#define TILEWRIGHT_NCCL_SYMBOL(member, name, parameters) load(functions.member, #name);
#include "nccl/NcclSymbols.def"
  if (missing)
    return fail(Stage::Load, fmt::format("{} ({}) has no {}", library.path(), versionText(), missing),
                "the library is damaged or not NVIDIA's");
  return {};
}

std::string NcclLibrary::versionText() const {
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Error NcclLibrary::error(int code, const std::string &what, void *communicator) const {
  const char *text = functions.getErrorString(code);
  const char *last = functions.getLastError(communicator);
  std::string message = fmt::format("{}: {}: {}", what, versionText(), text ? text : std::to_string(code));
  if (last && *last) message += fmt::format("; {}", last);
  return {Stage::Communicate, std::move(message), "NCCL_DEBUG=INFO makes it say more", {}};
}

} // namespace tilewright::dist
