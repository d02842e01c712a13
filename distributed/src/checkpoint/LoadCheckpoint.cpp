#include "CheckpointContents.h"
#include "CheckpointFolder.h"
#include "tilewright/distributed/transport/RankAgreement.h"
#include "tilewright/tensor/Half.h"
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright::dist {
namespace {

constexpr int64_t kStagingElements = int64_t{1} << 20;

Status fitsModel(const CheckpointContents &contents, const StepPlan &plan) {
  const std::string path = contents.path() + "/" + kModelName;
  for (const PlanParameter &p : plan.parameters) {
    const SafeTensor *tensor = contents.model().find(p.name);
    if (!tensor)
      return fail(Stage::Input, fmt::format("{}: {}: the model has this parameter, the file does not", path, p.name));
    if (tensor->shape != p.shape)
      return fail(Stage::Input, fmt::format("{}: {}.shape: expected ({}), as the model has, found ({})", path, p.name,
                                            fmt::join(p.shape, ", "), fmt::join(tensor->shape, ", ")));
  }
  for (const SafeTensor &tensor : contents.model().tensors)
    if (std::ranges::find(plan.parameters, tensor.name, &PlanParameter::name) == plan.parameters.end())
      return fail(Stage::Input, fmt::format("{}: {}: the model has no such parameter", path, tensor.name));
  return {};
}

/// One rank's part in loading one checkpoint.
class Loader {
public:
  Loader(Engine &engine, const CheckpointContents &contents)
      : engine(engine), contents(contents), plan(engine.plan()), staging(static_cast<size_t>(kStagingElements)) {}

  Status run() {
    for (int p = 0; p < engine.parameters(); ++p)
      if (Status s = loadParameter(p); !s) return s;
    for (const StateRange &range : keptRanges(plan, engine.network().rank()))
      for (StateKind kind : kStateKinds)
        if (const auto &at = range.at[static_cast<size_t>(kind)])
          if (Status s = loadState(kind, range, engine.steps().operand(*at)); !s) return s;
    return engine.compute().synchronize();
  }

private:
  /// visit(begin, count) for parts of [0, elements).
  template <class Visit> static Status inParts(int64_t elements, Visit visit) {
    for (int64_t begin = 0; begin < elements; begin += kStagingElements)
      if (Status s = visit(begin, std::min(kStagingElements, elements - begin)); !s) return s;
    return {};
  }

  /// The weights in fp32, into the staging memory: the master weights, where there are any.
  Status readWeights(const std::string &name, int64_t begin, int64_t count) {
    if (contents.manifest().parameterType == ElementType::F32)
      return contents.readModel(*contents.model().find(name), begin, count, staging.data());
    return contents.readState(StateKind::Master, name, begin, count, staging.data());
  }

  Status loadParameter(int index) {
    const Operand target = engine.parameter(index);
    const std::string &name = plan.parameters[static_cast<size_t>(index)].name;
    const SafeTensor &tensor = *contents.model().find(name);
    const int64_t size = sizeInBytes(target.type);
    return inParts(target.elements, [&](int64_t begin, int64_t count) -> Status {
      void *to = static_cast<char *>(target.data) + begin * size;
      if (tensor.type == target.type) {
        if (Status s = contents.readModel(tensor, begin, count, staging.data()); !s) return s;
        return engine.compute().fromHost(to, staging.data(), count * size);
      }
      if (Status s = readWeights(name, begin, count); !s) return s;
      if (target.type == ElementType::F32) return engine.compute().fromHost(to, staging.data(), count * size);
      std::vector<uint16_t> rounded(static_cast<size_t>(count));
      std::transform(staging.begin(), staging.begin() + count, rounded.begin(),
                     [](float weight) { return bfloat16FromFloat(weight); });
      return engine.compute().fromHost(to, rounded.data(), count * size);
    });
  }

  Status loadState(StateKind kind, const StateRange &range, const Operand &target) {
    const std::string &name = plan.parameters[static_cast<size_t>(range.parameter)].name;
    return inParts(range.count, [&](int64_t begin, int64_t count) -> Status {
      Status s = kind == StateKind::Master ? readWeights(name, range.begin + begin, count)
                                           : contents.readState(kind, name, range.begin + begin, count, staging.data());
      if (!s) return s;
      return engine.compute().fromHost(static_cast<float *>(target.data) + begin, staging.data(),
                                       count * static_cast<int64_t>(sizeof(float)));
    });
  }

  Engine &engine;
  const CheckpointContents &contents;
  const StepPlan &plan;
  std::vector<float> staging;
};

} // namespace

Expected<CheckpointSummary> loadCheckpoint(Engine &engine, const std::string &path) {
  Transport &network = engine.network();
  if (Status s = engine.synchronize(); !s) return propagate(s);
  Expected<CheckpointContents> contents = CheckpointContents::open(path);
  Status status = contents ? fitsModel(*contents, engine.plan()) : tl::unexpected<Error>(contents.error());
  if (Status s = agree(network, std::move(status)); !s) return propagate(s);
  Expected<std::vector<std::string>> ids = network.exchange(contents->manifest().id);
  if (!ids) return propagate(ids);
  for (size_t rank = 0; rank < ids->size(); ++rank)
    if ((*ids)[rank] != ids->front())
      return fail(Stage::Input, fmt::format("checkpoint {}: ranks 0 and {} found different ones", path, rank),
                  "all ranks need the same path and the same file system");
  // Each rank verifies a part of the files, and all hear of it before anything is loaded.
  if (Status s = agree(network, contents->verifyData(network.rank(), network.worldSize())); !s) return propagate(s);
  if (Status s = agree(network, Loader(engine, *contents).run()); !s) {
    network.abort(s.error().message); // the engine is partly loaded
    return propagate(s);
  }
  engine.restored(contents->manifest().step);
  return contents->summary();
}

Expected<CheckpointSummary> inspectCheckpoint(const std::string &path, bool verifyData) {
  Expected<CheckpointContents> contents = CheckpointContents::open(path);
  if (!contents) return propagate(contents);
  if (verifyData)
    if (Status s = contents->verifyData(); !s) return propagate(s);
  return contents->summary();
}

Expected<std::string> newestCheckpoint(const std::string &directory) {
  Expected<std::optional<CheckpointName>> newest = newestIn(directory);
  if (!newest) return propagate(newest);
  return *newest ? directory + "/" + (*newest)->text() : std::string();
}

} // namespace tilewright::dist
