// The engine on real GPUs over real NCCL: one process a GPU. Gradients are made on the host, so that what is compared
// is the engine: kernels, streams and events, NCCL, checkpoints.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "RankProcesses.h"
#include "TemporaryFolder.h"
#include "TrainingModel.h"
#include "tilewright/Environment.h"
#include "tilewright/distributed/checkpoint/Checkpoint.h"
#include "tilewright/distributed/transport/NcclTransport.h"
#include <doctest/doctest.h>
#include <fmt/format.h>

using namespace model;
using Say = std::function<void(const std::string &)>;

namespace {

/// How many GPUs this process may use. Asked in a child: the ranks are forked, and a driver does not survive that.
int gpus() {
  static const int known = [] {
    const pid_t pid = fork();
    if (pid == 0) {
      auto environment = Environment::ofProcess();
      if (!environment) _exit(0);
      auto driver = cuda::Driver::open(environment->cudaDriver);
      int count = 0;
      while (driver && count < 2 && cuda::Device::open(*driver, count))
        ++count;
      _exit(count);
    }
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  return known;
}

struct GpuTrainer {
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Engine> engine;
  Setup setup;
  int rank = 0;

  static Expected<GpuTrainer> make(const JobEnvironment &job, StrategyOptions options) {
    GpuTrainer t;
    t.rank = job.rank;
    t.setup.ranks = job.worldSize;
    auto context = Context::create({});
    if (!context) return propagate(context);
    auto device = CudaDevice::create(**context, job.localRank);
    if (!device) return propagate(device);
    t.device = std::move(*device);
    auto transport = connectNccl(job, *t.device, {(*context)->environment().nccl});
    if (!transport) return propagate(transport);
    t.transport = std::move(*transport);
    auto engine = Engine::create(parameterList(), options, *t.transport, *t.device);
    if (!engine) return propagate(engine);
    t.engine = std::move(*engine);
    return t;
  }

  Expected<std::vector<std::vector<float>>> parameters() {
    if (Status s = engine->synchronize(); !s) return propagate(s);
    std::vector<std::vector<float>> values;
    for (int i = 0; i < engine->parameters(); ++i) {
      const Operand p = engine->parameter(i);
      std::vector<char> bytes(static_cast<size_t>(p.elements * sizeInBytes(p.type)));
      if (Status s = device->toHost(bytes.data(), p.data, static_cast<int64_t>(bytes.size())); !s) return propagate(s);
      std::vector<float> &list = values.emplace_back();
      for (int64_t e = 0; e < p.elements; ++e)
        list.push_back(loadAny({bytes.data(), p.elements, p.type}, e));
    }
    return values;
  }

  Status write(const Operand &to, const std::vector<float> &values) {
    std::vector<char> bytes(values.size() * static_cast<size_t>(sizeInBytes(to.type)));
    for (size_t e = 0; e < values.size(); ++e)
      storeAny(bytes.data(), to.type, static_cast<int64_t>(e), values[e]);
    return device->fromHost(to.data, bytes.data(), static_cast<int64_t>(bytes.size()));
  }

  Status start() {
    for (int i = 0; i < engine->parameters(); ++i) {
      std::vector<float> values;
      for (int64_t e = 0; e < engine->parameter(i).elements; ++e)
        values.push_back(static_cast<float>(initial(i, e) + rank)); // only rank 0's count
      if (Status s = write(engine->parameter(i), values); !s) return s;
    }
    return engine->start();
  }

  Expected<StepReport> step() {
    const int now = static_cast<int>(engine->updates());
    auto values = parameters();
    if (!values) return propagate(values);
    int tokens = 0;
    for (int token = 0; token < kTokens; ++token)
      tokens += rankOf(setup, token) == rank;
    for (int i = engine->parameters() - 1; i >= 0; --i) {
      const std::vector<float> &p = (*values)[static_cast<size_t>(i)];
      std::vector<float> gradient;
      for (size_t e = 0; e < p.size(); ++e) {
        double sum = 0;
        for (int token = 0; token < kTokens; ++token)
          if (rankOf(setup, token) == rank && uses(i, token))
            sum += slope(i, token, now, static_cast<int64_t>(e)) * static_cast<double>(p[e]) -
                   offset(i, token, now, static_cast<int64_t>(e));
        gradient.push_back(static_cast<float>(sum));
      }
      const GradientView view = engine->gradient(i);
      if (Status s = write({view.data, view.elements, view.type}, gradient); !s) return propagate(s);
      if (Status s = engine->gradReady(i); !s) return propagate(s);
    }
    return engine->finishStep(tokens, settings(setup, now));
  }
};

void trainOnGpus(int ranks, Strategy strategy, ElementType type, double tolerance) {
  CAPTURE(ranks);
  CAPTURE(toString(strategy));
  Setup setup;
  setup.ranks = ranks;
  const Reference reference(setup);
  TemporaryFolder folder;
  StrategyOptions options{strategy, ranks, 4000};
  options.parameterType = type;
  RankProcesses job(ranks, [&](const JobEnvironment &environment, const Say &say) {
    auto run = [&]() -> Status {
      for (bool resumed : {false, true}) {
        auto t = GpuTrainer::make(environment, options);
        if (!t) return propagate(t);
        if (!resumed)
          if (Status s = t->start(); !s) return s;
        if (resumed)
          if (auto loaded = loadCheckpoint(*t->engine, folder.path); !loaded) return propagate(loaded);
        const int end = resumed ? setup.steps : setup.steps / 2;
        while (t->engine->updates() < end) {
          const size_t now = static_cast<size_t>(t->engine->updates());
          auto report = t->step();
          if (!report) return propagate(report);
          if (std::abs(report->norm / reference.norms[now] - 1) > tolerance)
            return fail(Stage::Verify, fmt::format("norm {} instead of {}", report->norm, reference.norms[now]));
        }
        if (!resumed) {
          auto saved = saveCheckpoint(*t->engine, {folder.path, {}, 1});
          if (!saved) return propagate(saved);
          continue;
        }
        auto values = t->parameters();
        if (!values) return propagate(values);
        double worst = 0, largest = 0;
        for (size_t i = 0; i < values->size(); ++i)
          for (size_t e = 0; e < (*values)[i].size(); ++e) {
            worst = std::max(worst, std::abs(reference.p[i][e] - static_cast<double>((*values)[i][e])));
            largest = std::max(largest, std::abs(reference.p[i][e]));
          }
        if (!(worst <= tolerance * largest)) return fail(Stage::Verify, fmt::format("error {}", worst / largest));
      }
      return {};
    };
    Status status = run();
    if (!status) say(status.error().text());
    return status ? 0 : 1;
  });
  for (const RankResult &result : job.wait())
    CHECK_MESSAGE(result.exitCode == 0, result.said);
}

void trainWithEveryStrategy(int ranks) {
  for (Strategy strategy : allStrategies())
    trainOnGpus(ranks, strategy, ElementType::F32, 1e-6);
  trainOnGpus(ranks, Strategy::Zero1, ElementType::BF16, 1.0 / 64);
}

} // namespace

TEST_CASE("[gpu] every strategy trains on a GPU over NCCL as one process in double does, through a checkpoint") {
  if (gpus() == 0) {
    MESSAGE("skipped: no device");
    return;
  }
  trainWithEveryStrategy(1);
}

TEST_CASE("[2 gpus] [gpu] every strategy trains on two GPUs over NCCL as one process in double does") {
  if (gpus() < 2) {
    MESSAGE("skipped: fewer than two devices");
    return;
  }
  trainWithEveryStrategy(2);
}

TEST_CASE("[2 gpus] [gpu] a killed or stopped rank is an error on the survivor, in time") {
  if (gpus() < 2) {
    MESSAGE("skipped: fewer than two devices");
    return;
  }
  for (int signal : {SIGKILL, SIGSTOP}) {
    RankProcesses job(
        2,
        [&](const JobEnvironment &environment, const Say &say) {
          auto t = GpuTrainer::make(environment, {Strategy::Zero1, 2, 4000});
          Status status = t ? t->start() : tl::unexpected<Error>(t.error());
          while (status) {
            if (auto report = t->step(); !report) status = propagate(report);
            if (status && environment.rank == 1 && t->engine->updates() == 3) say("here\n");
          }
          say(status.error().text());
          return 2;
        },
        signal == SIGSTOP ? std::chrono::seconds(3) : std::chrono::seconds(20));
    REQUIRE(job.hear(1) == "here\n");
    kill(job.pid(1), signal);
    const RankResult &survivor = job.waitFor(0);
    CHECK(survivor.exitCode == 2);
    CHECK_MESSAGE(survivor.said.find("rank 1") != std::string::npos, survivor.said);
    kill(job.pid(1), SIGKILL);
  }
}
