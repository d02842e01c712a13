#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "PlainParameters.h"
#include "RankProcesses.h"
#include "TemporaryFolder.h"
#include "tilewright/Compiler.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include "tilewright/train/CpuBackend.h"
#include "tilewright/train/TrainingRun.h"
#include <cmath>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>

using namespace tilewright;
using namespace tilewright::train;
using Say = std::function<void(const std::string &)>;

namespace {

/// Files of this test: data, kernels that all ranks share, checkpoints.
const std::string &folder() {
  static const TemporaryFolder own;
  return own.path;
}

std::string dataFile() {
  static const std::string path = [] {
    std::ofstream file(folder() + "/text", std::ios::binary);
    uint32_t state = 1;
    for (int i = 0; i < 3000; ++i) {
      state = state * 1664525 + 1013904223;
      file.put(i % 3 ? "etaoinshr "[(state >> 16) % 10] : 'e');
    }
    return folder() + "/text";
  }();
  return path;
}

TrainOptions smallTraining(dist::Strategy strategy = dist::Strategy::Bucketed) {
  TrainOptions o;
  o.model.vocabulary = 256;
  o.model.context = 8;
  o.model.width = 16;
  o.model.heads = 2;
  o.model.layers = 2;
  o.model.hidden = 24;
  o.data = dataFile();
  o.steps = 10;
  o.batch = 3; // uneven over 2 ranks, and nothing for one of 4
  o.warmup = 3;
  o.maxNorm = 0.5; // active
  o.strategy = strategy;
  o.bucketBytes = 4000;
  o.validationSequences = 5;
  // Adam divides a gradient by its own size: where that is rounding error, the sum's order decides the update. With
  // this epsilon such elements hardly move, and what is compared is the engine.
  o.epsilon = 1e-4;
  return o;
}

/// A process's own backend, as rank of a job.
struct Rank {
  Compiler compiler;
  ThreadPool pool{1};
  std::shared_ptr<Context> context;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<dist::ComputeDevice> device = dist::hostDevice();
  std::unique_ptr<dist::Transport> transport;

  Status open(const dist::JobEnvironment &job) {
    ContextOptions options;
    options.generator = &compiler;
    options.hostCompiler = Compiler::hostCompiler();
    options.cacheDir = folder() + "/kernels";
    auto made = Context::create(options);
    if (!made) return propagate(made);
    context = *made;
    auto cpu = cpuBackend(context, pool);
    if (!cpu) return propagate(cpu);
    backend = std::move(*cpu);
    auto network = dist::connectGloo(job);
    if (!network) return propagate(network);
    transport = std::move(*network);
    return {};
  }
};

int complain(const Say &say, const Error &error) {
  say(error.text());
  return 3;
}

/// AdamW by its equations, on one process, in double but for the parameters and the model's gradients.
struct PlainTraining {
  std::vector<std::vector<double>> values;
  std::vector<double> losses, norms;

  explicit PlainTraining(const TrainOptions &o) {
    Rank rank;
    REQUIRE(rank.open({}));
    auto model = Transformer::create(o.model, *rank.backend, o.batch, true);
    REQUIRE(model);
    PlainParameters host(o.model);
    const dist::ParameterList list = o.model.parameters(o.weightDecay);
    std::vector<std::vector<double>> m, v;
    for (int i = 0; i < host.count(); ++i) {
      std::vector<float> initial(static_cast<size_t>(host.elements(i)));
      fillInitial(o.model, o.seed, i, initial);
      values.emplace_back(initial.begin(), initial.end());
      m.emplace_back(initial.size());
      v.emplace_back(initial.size());
    }
    auto file = TokenFile::open(o.data, o.format, o.model.vocabulary);
    REQUIRE(file);
    const int64_t end = file->tokens() - static_cast<int64_t>(static_cast<double>(file->tokens()) * o.validationShare);
    const SequenceOrder order(0, end, o.model.context, o.seed);
    const size_t context = static_cast<size_t>(o.model.context);
    for (int64_t step = 1; step <= o.steps; ++step) {
      std::vector<int32_t> tokens, targets, window(context + 1);
      for (int64_t j = 0; j < o.batch; ++j) {
        REQUIRE(file->read(order.begin((step - 1) * o.batch + j), window));
        tokens.insert(tokens.end(), window.begin(), window.end() - 1);
        targets.insert(targets.end(), window.begin() + 1, window.end());
      }
      for (int i = 0; i < host.count(); ++i)
        for (int64_t e = 0; e < host.elements(i); ++e)
          host.set(i, e, values[static_cast<size_t>(i)][static_cast<size_t>(e)]);
      host.forgetGradients();
      auto loss = (*model)->lossAndGradients({tokens, targets, o.batch, o.model.context}, host);
      REQUIRE(loss);
      const double count = static_cast<double>(tokens.size());
      losses.push_back(*loss / count);
      double squares = 0;
      for (int i = 0; i < host.count(); ++i)
        for (int64_t e = 0; e < host.elements(i); ++e)
          squares += std::pow(host.gradientAt(i, e) / count, 2);
      norms.push_back(std::sqrt(squares));
      const double clip = o.maxNorm > 0 && norms.back() > o.maxNorm ? o.maxNorm / norms.back() : 1,
                   rate = o.rateAt(step);
      for (size_t i = 0; i < values.size(); ++i)
        for (size_t e = 0; e < values[i].size(); ++e) {
          const double g = host.gradientAt(static_cast<int>(i), static_cast<int64_t>(e)) / count * clip;
          m[i][e] = o.beta1 * m[i][e] + (1 - o.beta1) * g;
          v[i][e] = o.beta2 * v[i][e] + (1 - o.beta2) * g * g;
          const double corrected = v[i][e] / (1 - std::pow(o.beta2, step));
          values[i][e] -= rate * (list[i].weightDecay * values[i][e] +
                                  m[i][e] / (1 - std::pow(o.beta1, step)) / (std::sqrt(corrected) + o.epsilon));
        }
    }
  }

  /// Largest difference of a parameter, relative to the largest of all.
  double error(dist::Engine &engine) const {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < values.size(); ++i)
      for (size_t e = 0; e < values[i].size(); ++e) {
        const float *own = static_cast<const float *>(engine.parameter(static_cast<int>(i)).data);
        const double difference = std::abs(static_cast<double>(own[e]) - values[i][e]);
        worst = difference <= worst ? worst : difference; // NaN stays
        largest = std::max(largest, std::abs(values[i][e]));
      }
    return worst / largest;
  }
};

const PlainTraining &plainTraining(const TrainOptions &o) {
  static std::map<std::tuple<int64_t, double>, PlainTraining> done;
  const auto key = std::tuple(o.batch, o.maxNorm);
  if (!done.contains(key)) done.emplace(key, PlainTraining(o));
  return done.at(key);
}

uint64_t digest(dist::Engine &engine) {
  uint64_t hash = 1469598103934665603u;
  for (int i = 0; i < engine.parameters(); ++i) {
    const dist::Operand p = engine.parameter(i);
    for (int64_t b = 0; b < p.elements * sizeInBytes(p.type); ++b)
      hash = (hash ^ static_cast<const uint8_t *>(p.data)[b]) * 1099511628211u;
  }
  return hash;
}

struct Recorder final : TrainObserver {
  std::vector<StepRecord> records;
  std::vector<std::string> saves;
  void stepped(const StepRecord &record) override { records.push_back(record); }
  void saved(int64_t, const std::string &path) override { saves.push_back(path); }
};

/// Trains as a rank and says the parameters' digest, and each step's loss. `check` gets the trainer at the end.
using Check = std::function<std::string(Trainer &, const Recorder &)>;
int trainAsRank(const dist::JobEnvironment &job, const Say &say, const TrainOptions &options, const Check &check = {}) {
  Rank rank;
  if (Status s = rank.open(job); !s) return complain(say, s.error());
  auto trainer = Trainer::create(options, *rank.transport, *rank.device, *rank.backend);
  if (!trainer) return complain(say, trainer.error());
  Recorder recorder;
  auto result = runTraining(**trainer, recorder);
  if (!result) return complain(say, result.error());
  if (Status s = (*trainer)->engine().synchronize(); !s) return complain(say, s.error());
  if (check)
    if (const std::string wrong = check(**trainer, recorder); !wrong.empty()) return say(wrong), 1;
  std::string text = fmt::format("{:016x}", digest((*trainer)->engine()));
  for (const StepRecord &record : recorder.records)
    text += fmt::format(" {}", record.loss);
  say(text);
  return 0;
}

/// What all ranks agree on.
std::string trained(int ranks, const TrainOptions &options, const Check &check = {}) {
  CAPTURE(ranks);
  CAPTURE(std::string(toString(options.strategy)));
  RankProcesses job(ranks,
                    [&](const dist::JobEnvironment &e, const Say &say) { return trainAsRank(e, say, options, check); });
  std::string first;
  for (const RankResult &result : job.wait()) {
    CHECK_MESSAGE(result.exitCode == 0, result.said);
    if (first.empty()) first = result.said;
    CHECK(result.said == first);
  }
  return first;
}

Check against(const PlainTraining &plain, double tolerance) {
  return [&plain, tolerance](Trainer &trainer, const Recorder &recorder) -> std::string {
    if (recorder.records.size() != plain.losses.size()) return "steps are missing";
    for (size_t i = 0; i < plain.losses.size(); ++i) {
      const StepRecord &record = recorder.records[i];
      if (!(std::abs(record.loss / plain.losses[i] - 1) <= tolerance))
        return fmt::format("step {}: loss {} instead of {}", i + 1, record.loss, plain.losses[i]);
      if (!(std::abs(record.gradientNorm / plain.norms[i] - 1) <= tolerance))
        return fmt::format("step {}: norm {} instead of {}", i + 1, record.gradientNorm, plain.norms[i]);
    }
    const double error = plain.error(trainer.engine());
    return error <= tolerance ? "" : fmt::format("parameters differ by {}", error);
  };
}

} // namespace

TEST_CASE("every strategy at 1 to 4 ranks trains the model as a plain loop does") {
  for (int ranks : {1, 2, 3, 4})
    for (dist::Strategy strategy : dist::allStrategies()) {
      const TrainOptions o = smallTraining(strategy);
      trained(ranks, o, against(plainTraining(o), 1e-6));
    }
}

TEST_CASE("1 x 8 is 8 x 1; any bucket cap; clipping off; seven ranks") {
  for (dist::Strategy strategy : {dist::Strategy::Bucketed, dist::Strategy::Zero1}) {
    TrainOptions o = smallTraining(strategy);
    o.batch = 8;
    for (int accumulation : {1, 3, 8}) {
      o.accumulation = accumulation;
      for (int ranks : {1, 2})
        trained(ranks, o, against(plainTraining(o), 1e-6));
    }
    o.accumulation = 1;
    for (int64_t cap : {int64_t{1}, int64_t{100} << 10, int64_t{1} << 40}) {
      o.bucketBytes = cap;
      trained(3, o, against(plainTraining(o), 1e-6));
    }
    o.maxNorm = 0;
    trained(7, o, against(plainTraining(o), 1e-6));
  }
}

TEST_CASE("zero1 has bucketed's bits at two ranks") {
  CHECK(trained(2, smallTraining(dist::Strategy::Zero1)) == trained(2, smallTraining(dist::Strategy::Bucketed)));
}

TEST_CASE("resume goes on bitwise at the same world size, and within rounding at others") {
  for (auto [ranks, precision] : {std::pair{2, ElementType::F32}, {1, ElementType::BF16}}) {
    TrainOptions o = smallTraining(dist::Strategy::Zero1);
    o.parameterType = precision;
    const std::string whole = trained(ranks, o);
    const std::string directory = fmt::format("{}/resume-{}", folder(), ranks);
    o.checkpoints = directory;
    std::string losses;
    for (int stop : {4, 7, 0}) {
      o.stopAt = stop;
      const std::string part = trained(ranks, o);
      losses += part.substr(16);
      if (stop == 0) CHECK(part.substr(0, 16) + losses == whole);
      o.resume = directory;
    }
  }
  TrainOptions o = smallTraining(dist::Strategy::Zero1);
  o.checkpoints = o.resume = folder() + "/other";
  o.resume.clear();
  o.stopAt = 5;
  trained(2, o);
  o.resume = o.checkpoints;
  o.stopAt = 0;
  o.checkpoints.clear();
  const PlainTraining &plain = plainTraining(o);
  for (auto [ranks, strategy] : {std::pair{1, dist::Strategy::Flat}, {3, dist::Strategy::Zero1}}) {
    o.strategy = strategy;
    trained(ranks, o, [&](Trainer &trainer, const Recorder &recorder) -> std::string {
      if (recorder.records.size() != 5 || recorder.records[0].step != 6) return "it does not go on with step 6";
      bool saysSo = false;
      for (const OptionChange &change : trainer.changes())
        saysSo |= change.name == "ranks" && change.saved == "2";
      if (!saysSo) return "the other number of ranks is not reported";
      const double error = plain.error(trainer.engine());
      return error <= 1e-6 ? "" : fmt::format("parameters differ by {}", error);
    });
  }
}

TEST_CASE("bf16 parameters train the same on all strategies, near fp32") {
  std::string bits;
  for (dist::Strategy strategy : {dist::Strategy::Naive, dist::Strategy::Bucketed, dist::Strategy::Zero1}) {
    TrainOptions o = smallTraining(strategy);
    o.parameterType = ElementType::BF16;
    const std::string own = trained(2, o, [&](Trainer &, const Recorder &recorder) -> std::string {
      const PlainTraining &plain = plainTraining(o);
      for (size_t i = 0; i < plain.losses.size(); ++i)
        if (!(std::abs(recorder.records[i].loss / plain.losses[i] - 1) < 0.01)) return "a loss far from fp32's";
      return "";
    });
    if (bits.empty()) bits = own;
    CHECK(own == bits);
  }
}

TEST_CASE("gradients that are not finite: stop keeps the last good step, skip and continue go on") {
  using NonFinite = dist::StepSettings::NonFinite;
  for (NonFinite policy : {NonFinite::Stop, NonFinite::Skip, NonFinite::Continue}) {
    Rank rank;
    REQUIRE(rank.open({}));
    TrainOptions o = smallTraining();
    o.nonFinite = policy;
    o.checkpoints = fmt::format("{}/nan-{}", folder(), static_cast<int>(policy));
    auto trainer = Trainer::create(o, *rank.transport, *rank.device, *rank.backend);
    REQUIRE_MESSAGE(trainer, trainer.error().text());
    struct Poison final : TrainObserver {
      Trainer &trainer;
      int skipped = 0;
      explicit Poison(Trainer &trainer) : trainer(trainer) {}
      void stepped(const StepRecord &record) override {
        skipped += record.skipped;
        if (record.step == 3) static_cast<float *>(trainer.engine().parameter(0).data)['e' * 16] = NAN;
      }
    } poison(**trainer);
    auto result = runTraining(**trainer, poison);
    CHECK(result.has_value() == (policy != NonFinite::Stop));
    CHECK(poison.skipped == (policy == NonFinite::Skip ? 7 : 0));
    if (policy != NonFinite::Stop) continue;
    CHECK(result.error().text().find("nan") != std::string::npos);
    CHECK(result.error().hint.find("step-00000003") != std::string::npos);
  }
}

TEST_CASE("data that shrinks meanwhile ends all ranks with a checkpoint of the last good step") {
  const std::string path = folder() + "/shrinking";
  std::ofstream(path) << std::string(2000, 'a');
  TrainOptions o = smallTraining();
  o.data = path;
  o.steps = 1000;
  o.checkpoints = folder() + "/shrunk";
  RankProcesses job(2, [&](const dist::JobEnvironment &e, const Say &say) {
    Rank rank;
    if (Status s = rank.open(e); !s) return complain(say, s.error());
    auto trainer = Trainer::create(o, *rank.transport, *rank.device, *rank.backend);
    if (!trainer) return complain(say, trainer.error());
    struct Cutter final : TrainObserver {
      void stepped(const StepRecord &record) override {
        if (record.step == 2 && truncate(path->c_str(), 100) != 0) std::abort();
      }
      const std::string *path = nullptr;
    } cutter;
    cutter.path = &path;
    auto result = runTraining(**trainer, cutter);
    if (result) return 0;
    return complain(say, result.error());
  });
  bool named = false;
  for (const RankResult &result : job.wait()) {
    CHECK(result.exitCode == 3);
    CHECK(result.said.find("last good step") != std::string::npos);
    named |= result.said.find("2000 bytes when training started") != std::string::npos;
  }
  CHECK(named);
  CHECK(dist::newestCheckpoint(o.checkpoints).value_or("") != "");
}

TEST_CASE("a rank that cannot read its data is an error on all") {
  TrainOptions o = smallTraining();
  RankProcesses job(2, [&](const dist::JobEnvironment &e, const Say &say) {
    TrainOptions own = o;
    if (e.rank == 1) own.data += "-missing";
    return trainAsRank(e, say, own);
  });
  for (const RankResult &result : job.wait()) {
    CHECK(result.exitCode == 3);
    CHECK(result.said.find("-missing") != std::string::npos);
  }
}

TEST_CASE("a rank with another option is refused on all ranks, by name and with both values") {
  using Change = void (*)(TrainOptions &);
  for (auto [change, expected] : {std::pair<Change, const char *>{[](TrainOptions &o) { o.learningRate = 0.002; },
                                                                  R"(learning_rate: expected "0.001")"},
                                  {[](TrainOptions &o) { o.maxNorm = 0; }, R"(clip: expected "0.5")"},
                                  {[](TrainOptions &o) { o.nonFinite = dist::StepSettings::NonFinite::Skip; },
                                   R"(non_finite: expected "stop", as rank 0 has, found "skip")"},
                                  {[](TrainOptions &o) { o.seed = 2; }, "seed: "},
                                  {[](TrainOptions &o) { o.batch = 4; }, "batch: "},
                                  {[](TrainOptions &o) { o.steps = 11; }, "steps: "},
                                  {[](TrainOptions &o) { o.stopAt = 4; }, "stop_at: "},
                                  {[](TrainOptions &o) { o.validateEvery = 3; }, "validate_every: "},
                                  {[](TrainOptions &o) { o.model.heads = 1; }, R"("heads)"},
                                  {[](TrainOptions &o) { o.validationShare = 0.06; }, "data_tokens: "},
                                  {[](TrainOptions &o) { o.resume = "anywhere"; }, "resume: "}}) {
    RankProcesses job(2, [&](const dist::JobEnvironment &e, const Say &say) {
      TrainOptions own = smallTraining();
      if (e.rank == 1) change(own);
      return trainAsRank(e, say, own);
    });
    for (const RankResult &result : job.wait()) {
      CHECK(result.exitCode == 3);
      CHECK_MESSAGE(result.said.find("rank 1: ") != std::string::npos, result.said);
      CHECK_MESSAGE(result.said.find(expected) != std::string::npos, result.said);
    }
  }
}

TEST_CASE("resume reports what decides the data and the numbers, and refuses another function of the same parameters") {
  TrainOptions o = smallTraining();
  o.checkpoints = folder() + "/changed";
  o.stopAt = 2;
  trained(1, o);
  o.resume = o.checkpoints;
  o.checkpoints.clear();
  o.stopAt = 3;
  TrainOptions other = o;
  other.validationShare = 0.1;
  other.reductionType = ElementType::BF16;
  other.nonFinite = dist::StepSettings::NonFinite::Continue;
  trained(1, other, [](Trainer &trainer, const Recorder &) -> std::string {
    std::string names;
    for (const OptionChange &change : trainer.changes())
      names += change.name + "=" + change.saved + "/" + change.now + " ";
    const std::string expected = "data_tokens=2850/2700 non_finite=stop/continue reduction=float32/bfloat16 "
                                 "validation_share=0.05/0.1 validation_tokens=150/300 ";
    return names == expected ? "" : names;
  });
  for (auto [change, name] :
       {std::pair<void (*)(TrainOptions &), const char *>{[](TrainOptions &t) { t.model.heads = 1; },
                                                          "trained with heads 2; found 1"},
        {[](TrainOptions &t) { t.model.ropeBase = 500; }, "trained with rope_base 10000; found 500"}}) {
    other = o;
    change(other);
    RankProcesses job(1, [&](const dist::JobEnvironment &e, const Say &say) { return trainAsRank(e, say, other); });
    const RankResult &result = job.wait().front();
    CHECK(result.exitCode == 3);
    CHECK_MESSAGE(result.said.find(name) != std::string::npos, result.said);
  }
}
