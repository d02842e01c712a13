// What a machine is called in the tuned store.
#include "tilewright/Context.h"
#include "tilewright/tuning/ScheduleChoice.h"
#include <fmt/format.h>
#include <fstream>

namespace tilewright {
namespace {

std::string processorName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name"))
      if (size_t colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "unknown processor";
}

} // namespace

TuningEnvironment tuningEnvironment(Context &context, const Target &target, int device) {
  TuningEnvironment here;
  here.target = target.canonicalText();
  here.generator = context.generatorId();
  if (target.isCpu()) {
    here.device = fmt::format("{}, {} threads", processorName(), context.threads());
    here.compiler = context.hostCompiler();
    here.policy = kCpuPolicy;
    return here;
  }
  here.policy = kGpuColdPolicy;
  if (auto opened = context.device(device)) {
    here.device = (*opened)->info().name;
    here.driver = fmt::format("CUDA {}", cuda::cudaVersionText((*opened)->driver().version()));
  }
  if (auto nvrtc = context.nvrtc()) here.compiler = (*nvrtc)->version().text();
  return here;
}

} // namespace tilewright
