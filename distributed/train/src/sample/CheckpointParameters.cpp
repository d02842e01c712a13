#include "tilewright/distributed/checkpoint/Checkpoint.h"
#include "tilewright/distributed/checkpoint/Safetensors.h"
#include "tilewright/train/Sampler.h"
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tilewright::train {

Expected<std::unique_ptr<CheckpointParameters>> CheckpointParameters::load(const std::string &path, Backend &backend) {
  Expected<dist::CheckpointSummary> summary = dist::inspectCheckpoint(path, true);
  if (!summary) return propagate(summary);
  const auto note = summary->notes.find("model");
  if (note == summary->notes.end())
    return fail(Stage::Input, fmt::format("{}: checkpoint.json: notes have no model", summary->path),
                "the checkpoint was not written by `tilewright train`");
  Expected<ModelConfig> config = ModelConfig::fromJson(note->second);
  if (!config) return propagate(config);
  const std::string file = summary->path + "/model.safetensors";
  Expected<dist::SafetensorsHeader> header = dist::SafetensorsHeader::read(file);
  if (!header) return propagate(header);

  auto result = std::make_unique<CheckpointParameters>();
  result->config = *config;
  result->folder = summary->path;
  result->updates = summary->step;
  std::vector<char> bytes;
  for (const dist::ParameterSpec &parameter : config->parameters()) {
    const dist::SafeTensor *tensor = header->find(parameter.name);
    if (!tensor) return fail(Stage::Input, fmt::format("{}: no tensor {}", file, parameter.name));
    if (tensor->shape != parameter.shape)
      return fail(Stage::Input, fmt::format("{}: {}: expected shape ({}), found ({})", file, parameter.name,
                                            fmt::join(parameter.shape, ", "), fmt::join(tensor->shape, ", ")));
    if (tensor->type != ElementType::F32 && tensor->type != ElementType::BF16)
      return fail(Stage::Input, fmt::format("{}: {}: expected float32 or bfloat16, found {}", file, parameter.name,
                                            toString(tensor->type)));
    bytes.resize(static_cast<size_t>(tensor->bytes()));
    if (Status status = dist::readTensorData(file, *header, tensor->begin, tensor->bytes(), bytes.data()); !status)
      return propagate(status);
    Expected<void *> memory = backend.allocate(tensor->bytes(), parameter.name);
    if (!memory) return propagate(memory);
    if (Status status = backend.fromHost(*memory, bytes.data(), tensor->bytes()); !status) return propagate(status);
    result->values.push_back({*memory, tensor->elements(), tensor->type});
  }
  return result;
}

} // namespace tilewright::train
