#include "tilewright/cuda/Nvrtc.h"
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <dirent.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright::cuda {
namespace {

constexpr int kSupportedMajors[] = {13, 12};
constexpr std::string_view kBuiltinsPrefix = "libnvrtc-builtins.so.";

LibrarySearch librarySearch(const Nvrtc::Search &from) {
  LibrarySearch search;
  search.what = "NVRTC";
  search.overridePath = from.overridePath;
  search.overrideVariable = "TILEWRIGHT_NVRTC";
  if (std::ranges::find(kSupportedMajors, from.preferredMajor) != std::end(kSupportedMajors))
    search.names.push_back(fmt::format("libnvrtc.so.{}", from.preferredMajor));
  for (int major : kSupportedMajors)
    if (major != from.preferredMajor) search.names.push_back(fmt::format("libnvrtc.so.{}", major));
  search.directories = cudaLibraryDirectories(from.libraryPath, from.cudaHome);
  search.hint = "install NVRTC of CUDA 12 or 13 (NVIDIA's package cuda-nvrtc-13-0, or the CUDA toolkit) or let "
                "TILEWRIGHT_NVRTC name it; kernels of a cache or bundle need none";
  return search;
}

std::string directoryOf(const std::string &path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

/// The version of the only builtins library of this major version in a folder: NVRTC asks for it by exact version, so
/// it has to match. {0, 0} when there is none or a choice.
NvrtcVersion builtinsVersion(const std::string &directory, int major) {
  DIR *folder = opendir(directory.c_str());
  if (!folder) return {};
  NvrtcVersion found;
  bool ambiguous = false;
  while (dirent *entry = readdir(folder)) {
    std::string_view name = entry->d_name;
    if (!name.starts_with(kBuiltinsPrefix)) continue;
    name.remove_prefix(kBuiltinsPrefix.size());
    NvrtcVersion version;
    auto [dot, code] = std::from_chars(name.data(), name.data() + name.size(), version.major);
    const char *end = name.data() + name.size();
    if (code != std::errc() || dot == end || *dot != '.') continue;
    if (std::from_chars(dot + 1, end, version.minor).ec != std::errc() || version.major != major) continue;
    ambiguous |= found.major && !(found == version);
    found = version;
  }
  closedir(folder);
  return ambiguous ? NvrtcVersion{} : found;
}

} // namespace

std::string NvrtcVersion::text() const { return fmt::format("NVRTC {}.{}", major, minor); }

NvrtcVersion NvrtcVersion::parse(std::string_view text) {
  NvrtcVersion version;
  std::string copy(text);
  int length = 0;
  if (std::sscanf(copy.c_str(), "NVRTC %d.%d%n", &version.major, &version.minor, &length) != 2) return {};
  return length == static_cast<int>(copy.size()) ? version : NvrtcVersion{};
}

std::vector<std::string> fixedNvrtcOptions(NvrtcVersion version) {
  std::vector<std::string> options = {"--std=c++20", "--ptxas-options=-v", "--modify-stack-limit=false"};
  if (version.major > 12 || (version.major == 12 && version.minor >= 9)) options.push_back("--no-cache");
  return options;
}

NvrtcVersion Nvrtc::peekVersion(const Search &from) {
  LibrarySearch search = librarySearch(from);
  // A library that the host holds already is what open() would take: then asking it costs nothing.
  if (search.overridePath.empty())
    for (const std::string &name : search.names)
      if (void *held = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
        NvrtcVersion version;
        auto ask = reinterpret_cast<int (*)(int *, int *)>(dlsym(held, "nvrtcVersion"));
        bool known = ask && ask(&version.major, &version.minor) == 0;
        dlclose(held);
        return known ? version : NvrtcVersion{};
      }
  std::string path = DynamicLibrary::locate(search);
  size_t at = path.rfind(".so.");
  if (at == std::string::npos) return {};
  int major = 0;
  std::from_chars(path.data() + at + 4, path.data() + path.size(), major);
  return builtinsVersion(directoryOf(path), major);
}

Expected<std::shared_ptr<const Nvrtc>> Nvrtc::open(const Search &from) {
  auto library = DynamicLibrary::open(librarySearch(from));
  if (!library) return propagate(library);
  std::shared_ptr<Nvrtc> nvrtc(new Nvrtc(std::move(*library)));
  if (Status status = nvrtc->resolve(); !status) return propagate(status);
  return nvrtc;
}

Status Nvrtc::resolve() {
  const char *missing = nullptr;
  auto load = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
    if (!function && !missing) missing = name;
  };
  load(functions.getErrorString, "nvrtcGetErrorString");
#define TILEWRIGHT_NVRTC_SYMBOL(member, name, parameters) load(functions.member, #name);
#include "tilewright/cuda/NvrtcSymbols.def"
  if (missing)
    return fail(Stage::Load, fmt::format("{} is not an NVRTC of CUDA 12 or 13: it has no {}", library.path(), missing),
                "let TILEWRIGHT_NVRTC name libnvrtc.so.13 or libnvrtc.so.12");
  if (functions.version(&libraryVersion.major, &libraryVersion.minor) != 0)
    return fail(Stage::Load, fmt::format("{} does not tell its version", library.path()), "reinstall NVRTC");

  // NVRTC opens its builtins by bare name while it compiles, which fails when the loader's path does not hold its
  // folder. Once opened by full path, the bare name finds them.
  std::string builtins = fmt::format("{}/{}{}.{}", directoryOf(library.path()), kBuiltinsPrefix, libraryVersion.major,
                                     libraryVersion.minor);
  dlopen(builtins.c_str(), RTLD_LAZY | RTLD_LOCAL);

  int count = 0;
  if (functions.getNumSupportedArchs(&count) == 0 && count > 0) {
    supported.resize(count);
    if (functions.getSupportedArchs(supported.data()) != 0) supported.clear();
  }
  return {};
}

Expected<NvrtcResult> Nvrtc::compile(const NvrtcRequest &request) const {
  std::string architecture = request.architecture;
  if (request.output == NvrtcOutput::Ptx && architecture.starts_with("sm_")) architecture.replace(0, 2, "compute");
  std::vector<std::string> options = {"--gpu-architecture=" + architecture};
  for (std::string &option : fixedNvrtcOptions(libraryVersion))
    options.push_back(std::move(option));
  options.insert(options.end(), request.options.begin(), request.options.end());
  std::vector<const char *> pointers;
  for (const std::string &option : options)
    pointers.push_back(option.c_str());

  auto started = std::chrono::steady_clock::now();
  const std::string source(request.source), fileName = request.name + ".cu";
  void *program = nullptr;
  int code = functions.createProgram(&program, source.c_str(), fileName.c_str(), 0, nullptr, nullptr);
  if (code != 0) return explain(request, code, {}, options);
  struct Destroy {
    const NvrtcApi &api;
    void *&program;
    ~Destroy() { api.destroyProgram(&program); }
  } destroy{functions, program};

  code = functions.compileProgram(program, static_cast<int>(pointers.size()), pointers.data());
  NvrtcResult result;
  size_t bytes = 0;
  if (functions.getLogSize(program, &bytes) == 0 && bytes > 1) {
    result.log.resize(bytes);
    functions.getLog(program, result.log.data());
    result.log.resize(bytes - 1); // The size counts a terminating zero.
  }
  if (code != 0) return explain(request, code, std::move(result.log), options);

  const bool cubin = request.output == NvrtcOutput::Cubin;
  code = cubin ? functions.getCubinSize(program, &bytes) : functions.getPtxSize(program, &bytes);
  if (code == 0) {
    result.code.resize(bytes);
    code = cubin ? functions.getCubin(program, result.code.data()) : functions.getPtx(program, result.code.data());
  }
  if (code != 0 || bytes == 0) return explain(request, code, std::move(result.log), options);
  if (!cubin) result.code.resize(bytes - 1);
  result.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
  if (cubin) result.report = parsePtxasLog(result.log, request.name);
  return result;
}

} // namespace tilewright::cuda
