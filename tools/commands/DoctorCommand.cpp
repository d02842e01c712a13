// `tilewright doctor`: what this machine has, what is missing, and how to get it.
#include "Commands.h"
#include "Console.h"
#include "tilewright/Compiler.h"
#include "tilewright/Environment.h"
#include "tilewright/cache/CacheMaintenance.h"
#include "tilewright/cuda/Driver.h"
#include "tilewright/cuda/DynamicLibrary.h"
#include "tilewright/cuda/Nvrtc.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <thread>

namespace tilewright::tool {
namespace {

struct Finding {
  std::string what;
  bool present = false;
  std::string detail; ///< What was found, or what is missing.
  std::string remedy; ///< How to get it; empty when present.
};

Finding missing(const char *what, const Error &error) { return {what, false, error.message, error.hint}; }

Finding cpu() {
  Target target = Target::hostCpu();
  return {"CPU", true,
          fmt::format("{}, {}-bit vectors, {} threads", target.cpuLevel, target.vectorBits,
                      std::thread::hardware_concurrency()),
          ""};
}

std::vector<Finding> driver(const Environment &environment) {
  Expected<std::shared_ptr<const cuda::Driver>> opened = cuda::Driver::open(environment.cudaDriver);
  if (!opened) return {missing("CUDA driver", opened.error()), {"GPU", false, "none without a driver", ""}};
  std::vector<Finding> findings = {
      {"CUDA driver", true,
       fmt::format("serves CUDA {} ({})", cuda::cudaVersionText((*opened)->version()), (*opened)->path()), ""}};
  for (const cuda::DeviceInfo &d : (*opened)->devices()) {
    Expected<Target> target = Target::forComputeCapability(d.major, d.minor);
    findings.push_back({fmt::format("GPU {}", d.ordinal), target.has_value(),
                        fmt::format("{}, compute capability {}.{} ({}), {} SMs, {}", d.name, d.major, d.minor,
                                    target ? target->name : "not supported", d.smCount,
                                    formatBytes(static_cast<double>(d.totalBytes))),
                        target ? "" : "a GPU of compute capability 8.0 or newer is needed"});
  }
  return findings;
}

Finding nvrtc(const Environment &e) {
  Expected<std::shared_ptr<const cuda::Nvrtc>> opened =
      cuda::Nvrtc::open({.overridePath = e.nvrtc, .libraryPath = e.libraryPath, .cudaHome = e.cudaHome});
  if (!opened) return missing("NVRTC", opened.error());
  return {"NVRTC", true, fmt::format("{} ({})", (*opened)->version().text(), (*opened)->path()), ""};
}

Finding library(const Environment &e, const char *what, std::vector<std::string> names, const char *purpose,
                const char *remedy, const std::string &path) {
  cuda::LibrarySearch search;
  search.what = what;
  search.overridePath = path;
  search.names = std::move(names);
  search.directories = cuda::cudaLibraryDirectories(e.libraryPath, e.cudaHome);
  Expected<cuda::DynamicLibrary> opened = cuda::DynamicLibrary::open(search);
  if (!opened) return {what, false, fmt::format("not found; {}", purpose), remedy};
  return {what, true, opened->path(), ""};
}

Finding cache(const Environment &environment) {
  std::string directory = environment.cacheDirectory();
  if (directory.empty())
    return {"kernel cache", false, "no folder: kernels are compiled anew in every process",
            "set HOME or TILEWRIGHT_CACHE_DIR"};
  Expected<CacheInfo> info = cacheInfo(directory);
  if (!info) return missing("kernel cache", info.error());
  return {"kernel cache", true,
          fmt::format(
              "{}: {} kernels, {}, at most {}", directory, info->entries, formatBytes(static_cast<double>(info->bytes)),
              environment.cacheMaxBytes ? formatBytes(static_cast<double>(environment.cacheMaxBytes)) : "no limit"),
          ""};
}

} // namespace

void addDoctorCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("doctor", "Say what this machine has and what is missing");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "JSON on stdout");
  command->footer("\nENVIRONMENT\n" + environmentHelp());
  command->callback([json, &exitCode] {
    Expected<Environment> environment = Environment::ofProcess();
    if (!environment) {
      exitCode = reportError(environment.error());
      return;
    }
    std::vector<Finding> findings = {cpu(), {"CPU compiler", true, Compiler::hostCompiler(), ""}};
    for (Finding &finding : driver(*environment))
      findings.push_back(std::move(finding));
    findings.push_back(nvrtc(*environment));
    findings.push_back(library(*environment, "NCCL", {"libnccl.so.2"}, "needed for several GPUs",
                               "install NVIDIA's package libnccl2", environment->nccl));
    findings.push_back(library(*environment, "cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"},
                               "needed for training on GPUs", "install the CUDA toolkit's cuBLAS (libcublas)",
                               environment->cublasLt));
    findings.push_back(cache(*environment));
    if (*json) {
      nlohmann::json all = nlohmann::json::array();
      for (const Finding &f : findings)
        all.push_back({{"what", f.what}, {"present", f.present}, {"detail", f.detail}, {"remedy", f.remedy}});
      fmt::print("{}\n", all.dump());
      return;
    }
    for (const Finding &f : findings) {
      fmt::print("{} {:<13} {}\n", f.present ? "+" : "-", f.what, f.detail);
      if (!f.remedy.empty()) fmt::print("  {:<13} -> {}\n", "", f.remedy);
    }
  });
}

} // namespace tilewright::tool
