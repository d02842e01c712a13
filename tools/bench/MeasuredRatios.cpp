#include "MeasuredRatios.h"
#include "Embedded.h"
#include <nlohmann/json.hpp>

namespace tilewright::bench {
namespace {

const nlohmann::json &measured() {
  static const nlohmann::json table = nlohmann::json::parse(embeddedFile("fa3.json"), nullptr, false);
  return table;
}

} // namespace

std::optional<double> fa3OverCudnn(const BenchCase &benchCase) {
  const Problem &p = benchCase.problem;
  const bool causal = benchCase.mask == "causal";
  if (!causal && benchCase.mask != "none") return std::nullopt;
  if (p.dtype != DType::BF16 || p.dimQK != p.dimV || p.headsQ != p.headsKV || p.seqQ != p.seqKV ||
      p.batch * p.seqQ != 16384 || p.headsQ * p.dimQK != 2048)
    return std::nullopt;
  const char *role = p.direction == Direction::Forward ? "forward" : "backward";
  if (!measured().contains(role)) return std::nullopt;
  for (const nlohmann::json &row : measured()[role])
    if (row["dim"] == p.dimQK && row["causal"] == causal && row["seq"] == p.seqQ)
      return row["fa3"].get<double>() / row["cudnn"].get<double>();
  return std::nullopt;
}

std::string fa3Source() { return measured().value("source", ""); }

} // namespace tilewright::bench
