// libFuzzer target: any bytes as the JSON of a plan, its parts, and as schedule overrides. What reads must write and
// read back equal; nothing may crash or throw.

#include "tilewright/plan/KernelPlan.h"
#include <cstdlib>
#include <nlohmann/json.hpp>

using namespace tilewright;
using nlohmann::json;

namespace {

template <class T, class Read> void check(const json &source, Read read) {
  Expected<T> value = read(source);
  if (!value) {
    if (value.error().message.empty()) std::abort();
    return;
  }
  Expected<T> again = read(json::parse(json(*value).dump(), nullptr, false));
  if (!again || !(*again == *value)) std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  std::string_view text(reinterpret_cast<const char *>(bytes), size);
  if (auto overrides = ScheduleOverrides::parse(text))
    for (KernelRole role : {KernelRole::Forward, KernelRole::Delta, KernelRole::DQ, KernelRole::DKV}) {
      Schedule schedule;
      if (!overrides->apply(role, schedule)) std::abort();
    }
  json source = json::parse(text, nullptr, false);
  if (source.is_discarded()) return 0;
  check<KernelPlan>(source, kernelPlanFromJson);
  check<Problem>(source, problemFromJson);
  check<Schedule>(source, scheduleFromJson);
  check<Target>(source, targetFromJson);
  return 0;
}
