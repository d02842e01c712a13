// `tilewright sample`: lets a trained model continue a text.
#include "Commands.h"
#include "Console.h"
#include "OptionChecks.h"
#include "TrainSession.h"
#include "tilewright/train/Sampler.h"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace tilewright::tool {
namespace {

struct SampleCommandOptions {
  std::string checkpoint, prompt = "\n", target = "auto";
  std::vector<int32_t> promptTokens;
  train::SampleOptions sample;
  bool json = false;
};

/// Byte tokens are text; other vocabularies are numbers, whose meaning is their maker's.
constexpr int64_t kByteVocabulary = 256;

Status sampleOnce(const SampleCommandOptions &options) {
  SessionOptions machine;
  machine.target = options.target;
  machine.precision = ElementType::F32;
  machine.alone = true;
  Expected<std::unique_ptr<TrainSession>> session = TrainSession::open(machine);
  if (!session) return propagate(session);
  train::Backend &backend = *(*session)->backend;
  auto parameters = train::CheckpointParameters::load(options.checkpoint, backend);
  if (!parameters) return propagate(parameters);
  const train::ModelConfig &config = (*parameters)->model();
  const bool text = config.vocabulary == kByteVocabulary;
  Expected<std::unique_ptr<train::Transformer>> model = train::Transformer::create(config, backend, 1, false);
  if (!model) return propagate(model);

  std::vector<int32_t> prompt = options.promptTokens;
  if (prompt.empty()) {
    if (!text)
      return fail(
          Stage::Input,
          fmt::format("--prompt: the model has a vocabulary of {}, whose tokens are no bytes", config.vocabulary),
          "give tokens with --prompt-tokens");
    for (unsigned char byte : options.prompt)
      prompt.push_back(byte);
  }
  std::vector<int32_t> tokens;
  std::string said;
  Status status = train::sample(**model, **parameters, prompt, options.sample, [&](int32_t token) {
    tokens.push_back(token);
    if (text) said += static_cast<char>(token);
    if (options.json) return true;
    if (text)
      std::fputc(token, stdout);
    else
      fmt::print("{} ", token);
    return std::fflush(stdout) == 0;
  });
  if (!status) return status;
  if (!options.json) {
    fmt::print("\n");
    return {};
  }
  // Bytes need not be UTF-8 in the middle of training.
  nlohmann::json json = {{"checkpoint", (*parameters)->path()},
                         {"step", (*parameters)->step()},
                         {"tokens", tokens},
                         {"text", text ? nlohmann::json(said) : nlohmann::json()}};
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return {};
}

} // namespace

void addSampleCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("sample", "Let a trained model continue a text");
  auto options = std::make_shared<SampleCommandOptions>();
  command->add_option("--checkpoint", options->checkpoint, "A checkpoint, or a folder of them")->required();
  command->add_option("--prompt", options->prompt, "Text that it continues (default: a new line)");
  command->add_option("--prompt-tokens", options->promptTokens, "Tokens instead, separated by commas")
      ->delimiter(',')
      ->excludes("--prompt");
  command->add_option("--tokens", options->sample.tokens, "How many")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--temperature", options->sample.temperature, "0: always the likeliest")
      ->check(numberFrom(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", options->sample.topK, "Choose among so many; 0: among all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", options->sample.seed, "The same seed gives the same text")->capture_default_str();
  command->add_option("--target", options->target, "auto | cpu | cuda; auto: a GPU if there is one")
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object on stdout");
  command->footer("\nEXAMPLES\n  tilewright sample --checkpoint run --prompt 'The ' --tokens 300\n"
                  "  tilewright sample --checkpoint run/step-00000100 --prompt-tokens 12,7 --temperature 0 --json\n");
  command->callback([options, &exitCode] {
    if (Status status = sampleOnce(*options); !status) exitCode = reportError(status.error());
  });
}

} // namespace tilewright::tool
