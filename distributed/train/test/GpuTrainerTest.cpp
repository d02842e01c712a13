// A training on a GPU follows the CPU's: on a pretended one, whose kernels run on the host, and on real ones.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "GpuMachine.h"
#include "PlainParameters.h"
#include "TemporaryFolder.h"
#include "tilewright/Compiler.h"
#include "tilewright/distributed/engine/CudaDevice.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include "tilewright/distributed/transport/NcclTransport.h"
#include "tilewright/distributed/transport/Rendezvous.h"
#include "tilewright/train/CpuBackend.h"
#include "tilewright/train/Sampler.h"
#include "tilewright/train/TrainingRun.h"
#include <cmath>
#include <fstream>
#include <thread>

using namespace tilewright;
using namespace tilewright::train;

namespace {

[[maybe_unused]] const bool withCompiler = [] {
  static Compiler compiler;
  GpuMachine::generator = &compiler;
  GpuMachine::hostCompiler = Compiler::hostCompiler();
  return true;
}();

const std::string &folder() {
  static const TemporaryFolder own;
  return own.path;
}

/// A model and a text, both small enough for kernels that run on the host.
TrainOptions training(ElementType type, dist::Strategy strategy = dist::Strategy::Zero1) {
  TrainOptions o;
  o.model.vocabulary = 256;
  o.model.context = 12;
  o.model.width = 32;
  o.model.heads = 2;
  o.model.layers = 2;
  o.model.hidden = 40;
  o.data = folder() + "/text";
  std::ofstream file(o.data, std::ios::binary);
  uint32_t state = 1;
  for (int i = 0; i < 3000; ++i) {
    state = state * 1664525 + 1013904223;
    file.put(i % 3 ? "etaoinshr "[(state >> 16) % 10] : 'e');
  }
  o.parameterType = type;
  o.strategy = strategy;
  o.bucketBytes = 10000;
  o.steps = 6;
  o.batch = 3;
  o.warmup = 2;
  o.learningRate = 3e-3;
  o.maxNorm = 0.5;
  o.epsilon = 1e-4; // elements whose gradient is rounding error hardly move
  o.validationSequences = 4;
  return o;
}

struct Outcome {
  std::vector<double> losses, norms;
  double validation = 0;
  std::vector<char> parameters;
};

struct Recorder final : TrainObserver {
  Outcome outcome;
  void stepped(const StepRecord &record) override {
    outcome.losses.push_back(record.loss);
    outcome.norms.push_back(record.gradientNorm);
  }
};

Expected<Outcome> runWhole(const TrainOptions &options, dist::Transport &transport, dist::ComputeDevice &device,
                           Backend &backend) {
  auto trainer = Trainer::create(options, transport, device, backend);
  if (!trainer) return propagate(trainer);
  Recorder recorder;
  auto result = runTraining(**trainer, recorder);
  if (!result) return propagate(result);
  Outcome outcome = std::move(recorder.outcome);
  outcome.validation = result->validationLoss.value_or(NAN);
  dist::Engine &engine = (*trainer)->engine();
  if (Status s = engine.synchronize(); !s) return propagate(s);
  for (int i = 0; i < engine.parameters(); ++i) {
    const dist::Operand p = engine.parameter(i);
    std::vector<char> bytes(static_cast<size_t>(p.elements * sizeInBytes(p.type)));
    if (Status s = backend.toHost(bytes.data(), p.data, static_cast<int64_t>(bytes.size())); !s) return propagate(s);
    outcome.parameters.insert(outcome.parameters.end(), bytes.begin(), bytes.end());
  }
  return outcome;
}

/// On one rank, which needs no NCCL.
Outcome trainOn(GpuMachine &machine, const TrainOptions &options) {
  auto device = dist::CudaDevice::create(*machine.context, 0, machine.backend->stream());
  REQUIRE(device);
  auto transport = dist::connectGloo({});
  REQUIRE(transport);
  auto outcome = runWhole(options, **transport, **device, *machine.backend);
  REQUIRE_MESSAGE(outcome, (outcome ? "" : outcome.error().text()));
  return *outcome;
}

const Outcome &onCpu() {
  static const Outcome outcome = [] {
    auto context = Context::create(GpuMachine::options());
    REQUIRE(context);
    ThreadPool pool(1);
    auto backend = cpuBackend(*context, pool);
    REQUIRE(backend);
    auto device = dist::hostDevice();
    auto transport = dist::connectGloo({});
    REQUIRE(transport);
    auto made = runWhole(training(ElementType::F32), **transport, *device, **backend);
    REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
    return *made;
  }();
  return outcome;
}

void follows(const Outcome &gpu, double tolerance) {
  const Outcome &cpu = onCpu();
  REQUIRE((gpu.losses.size() > 0 && gpu.losses.size() <= cpu.losses.size())); // or it was stopped
  CHECK(cpu.losses.back() < cpu.losses.front());
  for (size_t i = 0; i < gpu.losses.size(); ++i) {
    CAPTURE(i);
    CHECK(gpu.losses[i] == doctest::Approx(cpu.losses[i]).epsilon(tolerance));
    CHECK(gpu.norms[i] == doctest::Approx(cpu.norms[i]).epsilon(8 * tolerance));
  }
  if (gpu.losses.size() == cpu.losses.size())
    CHECK(gpu.validation == doctest::Approx(cpu.validation).epsilon(tolerance));
}

void followsTheCpu(GpuMachine &machine, ElementType type) {
  CAPTURE(toString(type));
  // A bf16 has 8 bits; losses are means over rows whose errors differ.
  follows(trainOn(machine, training(type)), type == ElementType::F32 ? 2e-5 : 1.0 / 128);
}

/// Stopped after half the steps and resumed, a training ends with the same bits; its checkpoint gives the same text on
/// a CPU.
void resumes(const std::function<GpuMachine()> &machine, ElementType type) {
  TrainOptions options = training(type);
  GpuMachine first = machine();
  const Outcome whole = trainOn(first, options);
  options.checkpoints = folder() + "/checkpoints-" + std::string(toString(type));
  options.stopAt = 3;
  (void)trainOn(first, options);
  options.stopAt = 0;
  options.resume = options.checkpoints;
  GpuMachine second = machine();
  const Outcome resumed = trainOn(second, options);
  CHECK((resumed.parameters == whole.parameters));
  CHECK(resumed.losses.size() == 3);
  CHECK(resumed.losses.back() == whole.losses.back());

  auto says = [&](Backend &backend) {
    auto parameters = CheckpointParameters::load(options.checkpoints, backend);
    REQUIRE_MESSAGE(parameters, (parameters ? "" : parameters.error().text()));
    auto model = Transformer::create((*parameters)->model(), backend, 1, false);
    REQUIRE(model);
    std::vector<int32_t> prompt = {'e', 't', 'a'}, said;
    SampleOptions sampling;
    sampling.tokens = 20; // beyond the context
    sampling.temperature = 0;
    Status status = sample(**model, **parameters, prompt, sampling, [&](int32_t token) {
      said.push_back(token);
      return true;
    });
    REQUIRE_MESSAGE(status, (status ? "" : status.error().text()));
    return said;
  };
  auto context = Context::create(GpuMachine::options());
  ThreadPool pool(1);
  auto cpu = cpuBackend(*context, pool);
  REQUIRE(cpu);
  const std::vector<int32_t> onGpu = says(*second.backend), expected = says(**cpu);
  CHECK(onGpu.size() == 20);
  if (type == ElementType::F32) CHECK(onGpu == expected); // bf16's rounding may choose another of two likely ones
}

} // namespace

TEST_CASE("gradients of every parameter on a GPU whose kernels run on the host are the CPU's") {
  const ModelConfig config = training(ElementType::F32).model;
  auto context = Context::create(GpuMachine::options());
  ThreadPool pool(1);
  auto cpu = cpuBackend(*context, pool);
  REQUIRE(cpu);
  std::vector<int32_t> tokens, targets;
  for (int32_t i = 0; i < 2 * config.context; ++i) {
    tokens.push_back(i * 37 % 256);
    targets.push_back(i % 5 == 3 ? -1 : i * 91 % 256);
  }
  const Batch batch{tokens, targets, 2, config.context};
  // Memory of the pretended GPU is the host's: both read the same parameters.
  auto gradients = [&](Backend &backend, PlainParameters &host) {
    auto model = Transformer::create(config, backend, 2, true);
    REQUIRE(model);
    auto loss = (*model)->lossAndGradients(batch, host);
    REQUIRE_MESSAGE(loss, (loss ? "" : loss.error().text()));
    return *loss;
  };
  for (ElementType activations : {ElementType::F32, ElementType::BF16})
    for (ElementType parameters : {ElementType::F32, ElementType::BF16})
      for (ElementType reduced : {ElementType::F32, ElementType::BF16}) {
        CAPTURE(toString(activations));
        CAPTURE(toString(parameters));
        CAPTURE(toString(reduced));
        PlainParameters expected(config, parameters, ElementType::F32), found(config, parameters, reduced);
        for (int i = 0; i < expected.count(); ++i) {
          std::vector<float> values(static_cast<size_t>(expected.elements(i)));
          fillInitial(config, 7, i, values);
          for (int64_t e = 0; e < expected.elements(i); ++e)
            for (PlainParameters *host : {&expected, &found})
              host->set(i, e, static_cast<double>(values[static_cast<size_t>(e)]));
        }
        GpuMachine machine = GpuMachine::pretended({.type = activations});
        const double tolerance = activations == ElementType::BF16 ? 0.03 : reduced == ElementType::BF16 ? 0x1p-8 : 1e-5;
        CHECK(gradients(*machine.backend, found) ==
              doctest::Approx(gradients(**cpu, expected)).epsilon(activations == ElementType::BF16 ? 0.01 : 1e-6));
        for (int i = 0; i < expected.count(); ++i) {
          double error = 0, largest = 0;
          for (int64_t e = 0; e < expected.elements(i); ++e) {
            const double difference = std::abs(found.gradientAt(i, e) - expected.gradientAt(i, e));
            error = difference <= error ? error : difference; // NaN stays
            largest = std::max(largest, std::abs(expected.gradientAt(i, e)));
          }
          CAPTURE(i);
          CHECK(error <= tolerance * largest);
        }
      }
}

TEST_CASE("losses, norms and validation on a GPU whose kernels run on the host follow the CPU's") {
  for (ElementType type : {ElementType::F32, ElementType::BF16}) {
    GpuMachine machine = GpuMachine::pretended({.type = type});
    followsTheCpu(machine, type);
  }
}

TEST_CASE("[gpu] losses, norms and validation on a GPU follow the CPU's") {
  for (ElementType type : {ElementType::F32, ElementType::BF16})
    for (Backward attention : {Backward::TwoKernel, Backward::Fused}) {
      std::optional<GpuMachine> machine = GpuMachine::real({.type = type, .attention = attention});
      if (!machine) return;
      followsTheCpu(*machine, type);
    }
}

TEST_CASE("a resumed training on a GPU ends with the same bits, and its checkpoint speaks on GPU and CPU alike") {
  for (ElementType type : {ElementType::F32, ElementType::BF16})
    resumes([&] { return GpuMachine::pretended({.type = type}); }, type);
}

TEST_CASE("[gpu] a resumed training on a real GPU ends with the same bits, and its checkpoint speaks on the CPU too") {
  for (ElementType type : {ElementType::F32, ElementType::BF16}) {
    if (!GpuMachine::real({.type = type})) return;
    resumes([&] { return std::move(*GpuMachine::real({.type = type})); }, type);
  }
}

TEST_CASE("two ranks over NCCL, each on its own GPU, train as one does, with every strategy") {
  for (dist::Strategy strategy : dist::allStrategies()) {
    CAPTURE(toString(strategy));
    Pretend devices(fakeCuda().devices, 2);
    auto port = dist::openRendezvousPort("127.0.0.1", 0);
    REQUIRE(port);
    TrainOptions options = training(ElementType::F32, strategy);
    options.stopAt = 3;
    const ContextOptions contextOptions = GpuMachine::pretendedOptions();
    std::vector<std::string> errors(2);
    std::vector<Outcome> outcomes(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        dist::JobEnvironment job;
        job.rank = job.localRank = rank;
        job.worldSize = 2;
        job.masterPort = port->port;
        job.token = "a token";
        job.timeout = std::chrono::seconds(60);
        if (rank == 0) job.rendezvousSocket = port->socket;
        auto run = [&]() -> Status {
          auto machine = GpuMachine::open(contextOptions, {.device = rank, .type = ElementType::F32});
          if (!machine) return propagate(machine);
          auto device = dist::CudaDevice::create(*machine->context, rank, machine->backend->stream());
          if (!device) return propagate(device);
          auto transport = dist::connectNccl(job, **device, {FAKE_NCCL_PATH});
          if (!transport) return propagate(transport);
          auto outcome = runWhole(options, **transport, **device, *machine->backend);
          if (!outcome) return propagate(outcome);
          outcomes[static_cast<size_t>(rank)] = std::move(*outcome);
          return {};
        };
        if (Status status = run(); !status) errors[static_cast<size_t>(rank)] = status.error().text();
      });
    for (std::thread &thread : threads)
      thread.join();
    for (const std::string &error : errors)
      REQUIRE_MESSAGE(error.empty(), error);
    follows(outcomes[0], 2e-5);
    CHECK((outcomes[0].parameters == outcomes[1].parameters));
  }
}

TEST_CASE("a model whose rows are no whole units is refused before a GPU sees it") {
  GpuMachine machine = GpuMachine::pretended({});
  ModelConfig config = training(ElementType::BF16).model;
  config.hidden = 44;
  auto model = Transformer::create(config, *machine.backend, 1, true);
  REQUIRE_FALSE(model);
  CHECK_MESSAGE(model.error().text().find("hidden 44: on Fake GPU") != std::string::npos, model.error().text());
}
