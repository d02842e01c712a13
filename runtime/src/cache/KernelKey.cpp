#include "tilewright/cache/KernelKey.h"
#include "tilewright/plan/KernelPlan.h"
#include <fmt/format.h>

namespace tilewright {

std::string kernelKey(const KernelKeyInputs &inputs) {
  std::string text = fmt::format("tilewright kernel key {}\n", kKeySchema);
  // Each field with its length, so that no two different lists of fields give the same text.
  auto add = [&](std::string_view field) { text += fmt::format("{}:{}\n", field.size(), field); };
  add(inputs.generatorId);
  add(inputs.planText);
  text += fmt::format("{} options\n", inputs.options.size());
  for (const std::string &option : inputs.options)
    add(option);
  add(inputs.architecture);
  add(inputs.compiler);
  return sha256Hex(text);
}

} // namespace tilewright
