#include "gpu/CublasLt.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright::train {

Expected<std::shared_ptr<const CublasLt>> CublasLt::open(const Environment &environment, int preferredMajor) {
  cuda::LibrarySearch search;
  search.what = "cuBLASLt";
  search.overridePath = environment.cublasLt;
  search.overrideVariable = "TILEWRIGHT_CUBLASLT";
  search.names = {"libcublasLt.so.13", "libcublasLt.so.12"};
  if (preferredMajor == 12) std::reverse(search.names.begin(), search.names.end());
  search.directories = cuda::cudaLibraryDirectories(environment.libraryPath, environment.cudaHome);
  search.hint = "install the CUDA toolkit's cuBLAS (libcublas) or let TILEWRIGHT_CUBLASLT name it; without it models "
                "train on the CPU (--target cpu)";
  Expected<cuda::DynamicLibrary> opened = cuda::DynamicLibrary::open(search);
  if (!opened) {
    if (!environment.cublasLt.empty()) opened.error().hint += "; --target cpu trains without it";
    return propagate(opened);
  }
  std::shared_ptr<CublasLt> made(new CublasLt(std::move(*opened)));
  CublasLtApi &functions = made->functions;
  const char *missing = nullptr;
  auto load = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(made->library.symbol(name));
    if (!function && !missing) missing = name;
  };
  load(functions.getVersion, "cublasLtGetVersion");
  load(functions.getStatusString, "cublasLtGetStatusString");
#define TILEWRIGHT_CUBLASLT_SYMBOL(member, name, parameters) load(functions.member, #name);
#include "gpu/CublasLtSymbols.def"
  if (missing)
    return fail(Stage::Load,
                fmt::format("{} is not a cuBLASLt of CUDA 12 or 13: it has no {}", made->library.path(), missing),
                "let TILEWRIGHT_CUBLASLT name libcublasLt.so.13 or libcublasLt.so.12");
  return made;
}

std::string CublasLt::versionText() const {
  const size_t version = functions.getVersion(); // 130002 is 13.0.2
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Status CublasLt::check(int code, Stage stage, std::string_view what) const {
  if (code == 0) return {};
  const char *text = functions.getStatusString(code);
  return fail(stage, fmt::format("cannot {}: {}: {}", what, versionText(), text ? text : std::to_string(code)),
              "CUBLASLT_LOG_LEVEL=5 makes it say more");
}

} // namespace tilewright::train
