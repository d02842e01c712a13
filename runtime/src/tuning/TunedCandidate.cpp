#include "tilewright/tuning/TunedCandidate.h"
#include "../plan/JsonObject.h"
#include "tilewright/plan/KernelPlan.h"
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <utility>

namespace tilewright {
namespace {

constexpr std::pair<TuningOutcome, std::string_view> kOutcomes[] = {{TuningOutcome::Ok, "ok"},
                                                                    {TuningOutcome::Invalid, "invalid"},
                                                                    {TuningOutcome::CompileFailed, "compile_failed"},
                                                                    {TuningOutcome::Spills, "spills"},
                                                                    {TuningOutcome::WrongResult, "wrong_result"},
                                                                    {TuningOutcome::Crashed, "crashed"},
                                                                    {TuningOutcome::TimedOut, "timed_out"}};

} // namespace

std::string_view toString(TuningOutcome outcome) {
  for (const auto &[value, name] : kOutcomes)
    if (value == outcome) return name;
  return "unknown outcome";
}

Expected<TuningOutcome> parseTuningOutcome(std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto &[value, name] : kOutcomes) {
    if (name == text) return value;
    names.push_back(name);
  }
  return fail(Stage::Input, fmt::format("expected one of {}, found \"{}\"", fmt::join(names, ", "), text));
}

double TuningSizes::distanceTo(const TuningSizes &other) const {
  double sum = 0;
  for (auto [a, b] : {std::pair{batch * headsKV, other.batch * other.headsKV}, std::pair{seqQ, other.seqQ},
                      std::pair{seqKV, other.seqKV}}) {
    if (a == b) continue;
    if (a <= 0 || b <= 0) return std::numeric_limits<double>::infinity();
    sum += std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
  }
  return sum;
}

std::string TuningSizes::text() const {
  return fmt::format("b{} h{}{} q{} kv{}", batch, headsQ, headsQ == headsKV ? "" : fmt::format(":{}", headsKV), seqQ,
                     seqKV);
}

std::string tuningFamily(const Problem &problem, KernelRole role) {
  return sha256Hex(
      fmt::format("role={}\nlayout={}\n{}", toString(role), toString(problem.layout), problem.constantsText()));
}

void to_json(nlohmann::json &json, const TunedCandidate &c) {
  const TuningEnvironment &e = c.environment;
  json = {{"target", e.target},
          {"device", e.device},
          {"driver", e.driver},
          {"compiler", e.compiler},
          {"generator", e.generator},
          {"policy", e.policy},
          {"problem", c.problem},
          {"role", toString(c.role)},
          {"schedule", c.schedule},
          {"outcome", toString(c.outcome)},
          {"ms", c.ms},
          {"fastest_ms", c.fastestMs},
          {"slowest_ms", c.slowestMs},
          {"repeats", c.repeats},
          {"confirmed", c.confirmed},
          {"detail", c.detail},
          {"clock_mhz", c.clockMhz},
          {"recorded", c.recorded}};
}

Expected<TunedCandidate> tunedCandidateFromJson(const nlohmann::json &json) {
  TunedCandidate c;
  TuningEnvironment &e = c.environment;
  JsonObject object(json, "candidate");
  object.read("target", e.target);
  object.read("device", e.device);
  object.read("driver", e.driver);
  object.read("compiler", e.compiler);
  object.read("generator", e.generator);
  object.read("policy", e.policy);
  for (const char *key : {"problem", "schedule", "role", "outcome"})
    if (!object.isPresent(key)) object.refuse(key, "missing");
  if (const nlohmann::json *problem = object.find("problem"))
    object.accept("problem", c.problem, problemFromJson(*problem));
  if (const nlohmann::json *schedule = object.find("schedule"))
    object.accept("schedule", c.schedule, scheduleFromJson(*schedule));
  object.readName("role", c.role, parseKernelRole);
  object.readName("outcome", c.outcome, parseTuningOutcome);
  object.read("ms", c.ms);
  object.read("fastest_ms", c.fastestMs);
  object.read("slowest_ms", c.slowestMs);
  object.read("repeats", c.repeats);
  object.read("confirmed", c.confirmed);
  object.read("detail", c.detail);
  object.read("clock_mhz", c.clockMhz);
  object.read("recorded", c.recorded);
  if (c.outcome == TuningOutcome::Ok && !(c.ms > 0 && std::isfinite(c.ms)))
    object.refuse("ms", "expected a time above 0 where the outcome is ok");
  if (Status status = object.finish(); !status) return propagate(status);
  return c;
}

} // namespace tilewright
