#include "Peers.h"
#include "MeasuredRatios.h"
#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tilewright::bench {
namespace {

constexpr double kStartSeconds = 120;   ///< Importing PyTorch from a cold disk takes a while.
constexpr double kRequestSeconds = 300; ///< Compiling FlexAttention is part of its first series.
constexpr int kMaxRevivals = 3;

nlohmann::json openRequest(const BenchCase &c) {
  const Problem &p = c.problem;
  const bool window = p.window.left >= 0;
  return {{"op", "open"},
          {"batch", p.batch},
          {"heads_q", p.headsQ},
          {"heads_kv", p.headsKV},
          {"seq_q", p.seqQ},
          {"seq_kv", p.seqKV},
          {"dim_qk", p.dimQK},
          {"dim_v", p.dimV},
          {"dtype", toString(p.dtype)},
          {"mask", window     ? "window"
                   : p.causal ? "causal"
                              : "none"},
          {"window", p.window.left + 1},
          {"scale", p.effectiveScale()},
          {"backward", p.direction == Direction::Backward}};
}

std::optional<double> number(const nlohmann::json &json, const char *key) {
  auto found = json.find(key);
  return found != json.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::string text(const nlohmann::json &json, const char *key) {
  auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// FA3 from cuDNN's figures of the same cell.
Contestant estimateFa3(const BenchCase &benchCase, const Contestant &cudnn) {
  Contestant fa3{"fa3_estimate", {}, true, {}, {}};
  const std::optional<double> ratio = fa3OverCudnn(benchCase);
  if (!ratio)
    fa3.why = "no measured ratio for this shape";
  else if (!cudnn.series)
    fa3.why = "needs cuDNN's figures";
  else {
    fa3.series = SeriesFigures{};
    fa3.series->ms = fa3.series->fastestMs = fa3.series->slowestMs = cudnn.series->ms / *ratio;
  }
  return fa3;
}

} // namespace

bool Peers::has(std::string_view name) const { return std::ranges::find(columns, name) != columns.end(); }

Expected<std::vector<std::string>> Peers::parseChoice(const std::string &choice) {
  std::vector<std::string> columns;
  if (choice == "none") return columns;
  const std::string list = choice == "auto" ? "cudnn,fa2,flex" : choice;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    if (name != "cudnn" && name != "fa2" && name != "flex")
      return fail(
          Stage::Input,
          fmt::format("--peers: expected auto, none, or names out of cudnn, fa2, flex with commas, found '{}'", name));
    if (std::ranges::find(columns, name) != columns.end())
      return fail(Stage::Input, fmt::format("--peers: '{}' is given twice", name));
    columns.push_back(name);
    if (name == "cudnn") columns.push_back("fa3_estimate");
    begin = end + 1;
  }
  return columns;
}

Expected<Peers> Peers::create(const std::string &choice, const std::string &python,
                              const std::atomic<bool> &interrupted) {
  auto columns = parseChoice(choice);
  if (!columns) return propagate(columns);
  Peers peers;
  peers.python = python;
  peers.interrupted = &interrupted;
  peers.columns = std::move(*columns);
  if (!peers.columns.empty()) peers.revive();
  return peers;
}

/// Whether the child was gone.
bool Peers::reviveIfGone() {
  if (!unavailable.empty() || *interrupted || (process && process->alive())) return false;
  if (revivals++ < kMaxRevivals)
    revive();
  else
    unavailable = "the peers' Python failed too often";
  return true;
}

void Peers::revive() {
  auto started = PeerProcess::start(python);
  if (!started) {
    unavailable = started.error().message;
  } else {
    process = std::move(*started);
    auto hello = process->ask({{"op", "hello"}}, kStartSeconds, interrupted);
    if (!hello)
      unavailable = hello.error().message;
    else if (!(*hello)["ok"].get<bool>())
      unavailable = text(*hello, "why");
    else
      from = fmt::format("PyTorch {}, cuDNN {}", text(*hello, "torch"), text(*hello, "cudnn"));
  }
  if (!unavailable.empty()) {
    from = "none: " + unavailable;
    process.reset();
  }
}

Expected<nlohmann::json> Peers::ask(const nlohmann::json &request, double timeoutSeconds) {
  if (!unavailable.empty()) return fail(Stage::Communicate, unavailable);
  if (!process) return fail(Stage::Communicate, "the peers' Python has ended");
  Expected<nlohmann::json> reply = process->ask(request, timeoutSeconds, interrupted);
  if (!reply) return reply;
  if ((*reply)["ok"].get<bool>()) return reply;
  Error error{Stage::Communicate, text(*reply, "why"), {}, {}};
  // A CUDA error stays in its process: only a new one can go on.
  if (reply->value("broken", false)) process = nullptr;
  return tl::unexpected(error);
}

std::vector<Contestant> Peers::measure(const BenchCase &benchCase, const SeriesOptions &options, GpuMonitor *monitor) {
  std::vector<Contestant> contestants;
  bool open = false;
  for (const std::string &name : columns) {
    if (name == "fa3_estimate") {
      contestants.push_back(estimateFa3(benchCase, contestants.back()));
      continue;
    }
    Contestant contestant{name, {}, false, {}, {}};
    if (reviveIfGone()) open = false;
    Expected<nlohmann::json> reply = fail(Stage::Communicate, "interrupted");
    if (!*interrupted) {
      if (!open) {
        reply = ask(openRequest(benchCase), kRequestSeconds);
        open = reply.has_value();
      }
      if (open)
        reply = ask({{"op", "series"},
                     {"peer", name},
                     {"repeats", options.repeats},
                     {"warmups", options.warmups},
                     {"pause", options.pauseSeconds}},
                    kRequestSeconds);
    }
    std::optional<double> ms = reply ? number(*reply, "ms") : std::nullopt;
    if (!reply)
      contestant.why = reply.error().message;
    else if (!ms || !(*ms > 0))
      contestant.why = "the reply holds no time";
    else {
      SeriesFigures figures;
      figures.ms = *ms;
      figures.fastestMs = number(*reply, "fastest").value_or(*ms);
      figures.slowestMs = number(*reply, "slowest").value_or(*ms);
      figures.queued = reply->value("queued", true);
      const std::optional<double> begin = number(*reply, "begin"), end = number(*reply, "end");
      if (monitor && begin && end) {
        const GpuReadings readings = monitor->between(*begin, *end);
        figures.clockMhz = readings.clockMhz;
        figures.powerW = readings.powerW;
      }
      contestant.series = figures;
    }
    contestants.push_back(std::move(contestant));
  }
  // Both processes' allocations must fit: the child keeps nothing between cells.
  if (open && process && process->alive() && !*interrupted) (void)ask({{"op", "close"}}, kRequestSeconds);
  return contestants;
}

Status Peers::cudnnOutput(const BenchCase &benchCase, const std::filesystem::path &q, const std::filesystem::path &k,
                          const std::filesystem::path &v, const std::filesystem::path &output) {
  if (!has("cudnn")) return fail(Stage::Input, "cuDNN is not among --peers");
  reviveIfGone();
  nlohmann::json request = openRequest(benchCase);
  request["files"] = {{"q", q.string()}, {"k", k.string()}, {"v", v.string()}};
  auto reply = ask(request, kRequestSeconds);
  if (!reply) return propagate(reply);
  reply = ask({{"op", "output"}, {"peer", "cudnn"}, {"file", output.string()}}, kRequestSeconds);
  if (!reply) return propagate(reply);
  auto closed = ask({{"op", "close"}}, kRequestSeconds);
  if (!closed) return propagate(closed);
  return {};
}

} // namespace tilewright::bench
