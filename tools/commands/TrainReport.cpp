#include "TrainReport.h"
#include "../bench/Stderr.h"
#include "Console.h"
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <unistd.h>

namespace tilewright::tool {
namespace {

std::string timeText(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

/// JSON has no NaN; a diverged training's metrics say null.
nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); }

} // namespace

double modelFlopsUtilisation(train::Trainer &trainer, double tokensPerSecond, int ranks) {
  const double peak = trainer.backend().peakFlops() * ranks;
  const train::ModelConfig &model = trainer.options().model;
  return peak > 0 ? tokensPerSecond * model.flopsPerToken(model.context) / peak : 0;
}

Expected<std::unique_ptr<TrainReport>> TrainReport::open(train::Trainer &trainer, int rank, int ranks, int64_t every,
                                                         const std::string &metrics) {
  std::unique_ptr<TrainReport> report(new TrainReport(trainer, rank, ranks, every));
  report->terminal = isatty(STDERR_FILENO);
  report->path = metrics;
  const size_t place = metrics.find("{rank}");
  if (place != std::string::npos) report->path.replace(place, 6, fmt::format("{}", rank));
  if (metrics.empty() || (rank != 0 && place == std::string::npos)) return report;
  report->file = std::fopen(report->path.c_str(), trainer.stepsDone() > 0 ? "ae" : "we");
  if (!report->file)
    return fail(Stage::Output, fmt::format("{}: cannot write: {}", report->path, std::strerror(errno)));
  return report;
}

TrainReport::~TrainReport() {
  if (file) std::fclose(file);
}

void TrainReport::line(const std::string &text, bool overwrite) {
  if (terminal && lineOpen) toStderr("\r\033[K");
  lineOpen = terminal && overwrite;
  toStderr("{}{}", text, lineOpen ? "" : "\n");
  std::fflush(stderr);
}

void TrainReport::write(const nlohmann::json &json) {
  if (!file || failed) return;
  // Flushed line by line: who follows the file sees each step, and a kill loses none.
  failed = std::fputs((json.dump() + "\n").c_str(), file) < 0 || std::fflush(file) != 0;
}

Status TrainReport::status() const {
  if (!failed) return {};
  return fail(Stage::Output, fmt::format("{}: metrics could not be written", path), "is the disk full?");
}

void TrainReport::stepped(const train::StepRecord &r) {
  smoothedSeconds = smoothedSeconds > 0 ? 0.9 * smoothedSeconds + 0.1 * r.seconds : r.seconds;
  const double rate = r.tokens / r.seconds, utilisation = modelFlopsUtilisation(trainer, rate, ranks);
  const int64_t memory = trainer.memory().total();
  write({{"step", r.step},
         {"loss", number(r.loss)},
         {"learning_rate", r.learningRate},
         {"gradient_norm", number(r.gradientNorm)},
         {"tokens", r.tokens},
         {"skipped", r.skipped},
         {"milliseconds", r.seconds * 1e3},
         {"tokens_per_second", rate},
         {"mfu", utilisation},
         {"memory_bytes", memory}});
  const int64_t steps = trainer.options().steps;
  const bool shown = terminal || r.step % every == 0 || r.step == 1 || r.step == steps || r.skipped;
  if (rank != 0 || !shown) return;
  line(fmt::format("step {:>{}}/{}  loss {:.4f}  norm {:.3f}  {:.0f} tokens/s  MFU {:.1f} %  {} a rank  {} left{}",
                   r.step, fmt::formatted_size("{}", steps), steps, r.loss, r.gradientNorm, rate, utilisation * 100,
                   formatBytes(static_cast<double>(memory)),
                   timeText(smoothedSeconds * static_cast<double>(steps - r.step)),
                   r.skipped ? "  gradient not finite: skipped" : ""),
       !r.skipped);
}

void TrainReport::validated(int64_t step, double loss) {
  write({{"step", step}, {"validation_loss", number(loss)}});
  if (rank == 0) line(fmt::format("step {}  validation loss {:.4f}", step, loss), false);
}

void TrainReport::saved(int64_t step, const std::string &where) {
  write({{"step", step}, {"checkpoint", where}});
  if (rank == 0) line(fmt::format("step {}  checkpoint {}", step, where), false);
}

void TrainReport::finish() {
  if (lineOpen) toStderr("\n");
  lineOpen = false;
}

} // namespace tilewright::tool
