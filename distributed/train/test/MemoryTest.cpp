#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/Compiler.h"
#include "tilewright/Context.h"
#include "tilewright/ThreadPool.h"
#include "tilewright/distributed/transport/GlooTransport.h"
#include "tilewright/train/AllocatedMemory.h"
#include "tilewright/train/CpuBackend.h"
#include <doctest/doctest.h>

using namespace tilewright;
using namespace tilewright::train;

namespace {

/// The host's memory, with what it was asked for.
class CountingDevice final : public dist::ComputeDevice {
public:
  int64_t bytes = 0;

  Expected<void *> allocate(int64_t size, std::string_view what) override {
    bytes += size;
    return inner->allocate(size, what);
  }
  Status run(dist::Lane lane, const dist::KernelCall &call) override { return inner->run(lane, call); }
  Status wait(dist::Lane lane, int op) override { return inner->wait(lane, op); }
  Status record(dist::Lane lane, int op) override { return inner->record(lane, op); }
  Status toHost(void *to, const void *from, int64_t size) override { return inner->toHost(to, from, size); }
  Status fromHost(void *to, const void *from, int64_t size) override { return inner->fromHost(to, from, size); }
  Status clear(void *data, int64_t size) override { return inner->clear(data, size); }
  Status synchronize() override { return inner->synchronize(); }

private:
  std::unique_ptr<dist::ComputeDevice> inner = dist::hostDevice();
};

} // namespace

TEST_CASE("what is reported as memory is what was allocated; a plan that foretold something else is an error") {
  Compiler compiler;
  ContextOptions contextOptions;
  contextOptions.generator = &compiler;
  contextOptions.hostCompiler = Compiler::hostCompiler();
  auto context = Context::create(contextOptions);
  REQUIRE(context);
  ThreadPool pool(1);
  auto backend = cpuBackend(*context, pool);
  REQUIRE(backend);
  ModelConfig config;
  config.width = 16;
  config.hidden = 24;
  config.context = 8;
  auto model = Transformer::create(config, **backend, 2, true);
  REQUIRE(model);
  const int64_t activations = Transformer::activationBytes(config, 2, true, **backend);
  CHECK((*model)->allocatedBytes() == activations);
  auto transport = dist::connectGloo({});
  REQUIRE(transport);
  for (dist::Strategy strategy : dist::allStrategies())
    for (ElementType type : {ElementType::F32, ElementType::BF16}) {
      CountingDevice device;
      dist::StrategyOptions options{strategy};
      options.parameterType = type;
      options.activationBytes = activations;
      auto engine = dist::Engine::create(config.parameters(), options, **transport, device);
      REQUIRE(engine);
      auto memory = allocatedMemory(**engine, **model);
      REQUIRE_MESSAGE(memory, memory.error().text());
      CHECK(memory->total() == device.bytes + activations);
      CHECK(memory->of(dist::Category::Activations) == activations);
    }
  CountingDevice device;
  dist::StrategyOptions options;
  options.activationBytes = activations - 4;
  auto engine = dist::Engine::create(config.parameters(), options, **transport, device);
  REQUIRE(engine);
  auto memory = allocatedMemory(**engine, **model);
  REQUIRE_FALSE(memory);
  CHECK_MESSAGE(memory.error().text().find("memory: activations: the plan foretold") != std::string::npos,
                memory.error().text());
}
