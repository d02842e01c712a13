#include "BenchTraining.h"
#include <fmt/format.h>
#include <map>

namespace tilewright::tool {
namespace {

/// Milliseconds a step in the course notes: small, two GPUs, gloo.
const std::map<std::string, double> kNotesDdp = {{"naive", 930.3},           {"flat", 709.6},
                                                 {"overlap", 735.5},         {"bucketed 1 MB", 808.7},
                                                 {"bucketed 10 MB", 700.3},  {"bucketed 100 MB", 673.6},
                                                 {"bucketed 1000 MB", 701.7}};

struct NotesZero {
  double optimizerMB, steadyMB, stepMs;
};
/// medium, four RTX 4090, gloo, fp32; ZeRO-1 is round robin with a broadcast.
const std::map<std::string, NotesZero> kNotesZero = {{"bucketed", {3228.6, 6559.4, 2580}},
                                                     {"zero1-broadcast", {807.1, 4175.1, 5087}}};

std::string heading(const nlohmann::json &r) {
  const nlohmann::json &model = r["model"];
  return fmt::format(
      "{}: {} parameters, {} layers; {} ranks over {}, {} x {} tokens a rank, {}, medians of {} steps\n{}\n\n",
      model["name"].get<std::string>(), r["parameters"].get<int64_t>(), model["layers"].get<int64_t>(),
      r["ranks"].get<int>(), r["backend"].get<std::string>(), r["batch"].get<int64_t>(),
      model["context"].get<int64_t>(), r["precision"].get<std::string>(), r["steps"].get<int64_t>(),
      r["compute"].get<std::string>());
}

double stepOf(const nlohmann::json &result, std::string_view mode) {
  for (const nlohmann::json &row : result["rows"])
    if (row["mode"] == mode) return row["step_ms"];
  return 0;
}

double megabytes(const nlohmann::json &row, std::initializer_list<const char *> categories) {
  double sum = 0;
  for (const char *category : categories)
    sum += row["memory_bytes"][category].get<double>();
  return sum / 1e6;
}

} // namespace

std::string ddpTable(const nlohmann::json &result) {
  std::string text = heading(result);
  text += fmt::format("{:<18} {:>6} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>11}\n", "mode", "calls", "sent MB",
                      "total ms", "comm ms", "wait ms", "overhead", "to naive", "notes ms", "notes naive");
  const double alone = stepOf(result, "no communication"), naive = stepOf(result, "naive");
  for (const nlohmann::json &row : result["rows"]) {
    const std::string mode = row["mode"];
    const double step = row["step_ms"];
    const auto notes = kNotesDdp.find(mode);
    text += fmt::format("{:<18} {:>6} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>8.1f}% {:>9.3f} {:>9} {:>11}\n", mode,
                        row["calls"].get<int64_t>(), row["sent_bytes"].get<double>() / 1e6, step,
                        row["communication_ms"].get<double>(), row["wait_ms"].get<double>(), (step / alone - 1) * 100,
                        step / naive, notes == kNotesDdp.end() ? "" : fmt::format("{:.1f}", notes->second),
                        notes == kNotesDdp.end() ? "" : fmt::format("{:.3f}", notes->second / kNotesDdp.at("naive")));
  }
  return text +
         "\ncomm: in collectives, hidden or not. wait: the step without forward and backward; the update is in it."
         "\nnotes: the small model on two GPUs over gloo.";
}

std::string zeroTable(const nlohmann::json &result) {
  std::string text = heading(result);
  text += fmt::format("{:<18} {:>12} {:>10} {:>10} {:>10} {:>8} {:>14} {:>10} {:>9}\n", "mode", "optimizer MB",
                      "steady MB", "step ms", "wait ms", "to DDP", "notes optim.", "steady MB", "step ms");
  const double ddp = stepOf(result, "bucketed");
  for (const nlohmann::json &row : result["rows"]) {
    const std::string mode = row["mode"];
    const auto notes = kNotesZero.find(mode);
    const bool known = notes != kNotesZero.end();
    text += fmt::format("{:<18} {:>12.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>8.3f} {:>14} {:>10} {:>9}\n", mode,
                        megabytes(row, {"optimizer state"}),
                        megabytes(row, {"parameters", "gradients", "optimizer state", "communication"}),
                        row["step_ms"].get<double>(), row["wait_ms"].get<double>(), row["step_ms"].get<double>() / ddp,
                        known ? fmt::format("{:.1f}", notes->second.optimizerMB) : "",
                        known ? fmt::format("{:.1f}", notes->second.steadyMB) : "",
                        known ? fmt::format("{:.0f}", notes->second.stepMs) : "");
  }
  return text + "\nsteady: parameters, gradients, optimizer state and communication, without activations."
                "\nnotes: the medium model on four RTX 4090 over gloo, whose ZeRO-1 broadcasts.";
}

} // namespace tilewright::tool
