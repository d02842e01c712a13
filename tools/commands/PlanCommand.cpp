// `tilewright plan`: what one step of a strategy does, sends and keeps in memory, without running it.
#include "Commands.h"
#include "Console.h"
#include "OptionChecks.h"
#include "tilewright/distributed/plan/PlanCost.h"
#include "tilewright/distributed/plan/Strategy.h"
#include "tilewright/train/ModelConfig.h"
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace tilewright::tool {
namespace {

struct PlanOptions {
  std::vector<std::string> parameters;
  std::string model, strategy = "zero1", parameterType = "fp32", gradientType = "fp32", reductionType = "fp32";
  dist::StrategyOptions strategyOptions;
  int rank = 0;
  bool json = false;
};

/// "weight=768x3072" or "weight=768x3072:0.1"
Expected<dist::ParameterSpec> parseParameter(const std::string &text) {
  dist::ParameterSpec spec;
  auto refuse = [&] {
    return fail(Stage::Input, fmt::format("--parameter: expected NAME=AxB or NAME=AxB:DECAY, found '{}'", text));
  };
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) return refuse();
  spec.name = text.substr(0, equals);
  std::string_view rest = std::string_view(text).substr(equals + 1);
  if (const size_t colon = rest.find(':'); colon != std::string_view::npos) {
    std::string_view decay = rest.substr(colon + 1);
    auto [end, error] = std::from_chars(decay.data(), decay.data() + decay.size(), spec.weightDecay);
    if (error != std::errc() || end != decay.data() + decay.size()) return refuse();
    rest = rest.substr(0, colon);
  }
  while (true) {
    int64_t extent = 0;
    auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), extent);
    if (error != std::errc() || extent < 0) return refuse();
    spec.shape.push_back(extent);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (rest.empty()) return spec;
    if (rest.front() != 'x') return refuse();
    rest.remove_prefix(1);
  }
}

Expected<dist::ParameterList> parametersOf(const PlanOptions &options) {
  constexpr double kWeightDecay = 0.1; // what the trainer starts with
  if (options.parameters.empty()) {
    Expected<train::ModelConfig> model = train::ModelConfig::preset(options.model.empty() ? "tiny" : options.model);
    if (!model) return propagate(model);
    return model->parameters(kWeightDecay);
  }
  dist::ParameterList list;
  for (const std::string &text : options.parameters) {
    Expected<dist::ParameterSpec> spec = parseParameter(text);
    if (!spec) return propagate(spec);
    list.push_back(std::move(*spec));
  }
  return list;
}

Expected<dist::StepPlan> planOf(const PlanOptions &options) {
  dist::StrategyOptions strategy = options.strategyOptions;
  Expected<dist::Strategy> kind = dist::parseStrategy(options.strategy);
  if (!kind) return propagate(kind);
  strategy.strategy = *kind;
  for (auto [option, text, type] : {std::tuple{"--parameter-type", &options.parameterType, &strategy.parameterType},
                                    {"--gradient-type", &options.gradientType, &strategy.gradientType},
                                    {"--reduction-type", &options.reductionType, &strategy.reductionType}}) {
    Expected<ElementType> found = parseTrainingType(option, *text);
    if (!found) return propagate(found);
    *type = *found;
  }
  Expected<dist::ParameterList> list = parametersOf(options);
  if (!list) return propagate(list);
  Expected<dist::StepPlan> plan = dist::buildPlan(*list, strategy);
  if (plan && options.rank >= strategy.worldSize)
    return fail(Stage::Input, fmt::format("--rank: expected 0 to {}, found {}", strategy.worldSize - 1, options.rank));
  return plan;
}

nlohmann::json costs(const dist::StepPlan &plan, int rank) {
  nlohmann::json memory, traffic = nlohmann::json::object();
  const dist::MemoryByCategory bytes = dist::predictMemory(plan, rank);
  for (int c = 0; c < dist::kCategories; ++c)
    memory[std::string(dist::toString(static_cast<dist::Category>(c)))] = bytes.bytes[static_cast<size_t>(c)];
  for (const auto &[kind, t] : dist::predictTraffic(plan, rank))
    traffic[std::string(dist::toString(kind))] = {
        {"calls", t.calls}, {"payload_bytes", t.payloadBytes}, {"sent_bytes", t.sentBytes}};
  return {{"rank", rank}, {"memory_bytes", memory}, {"traffic", traffic}};
}

} // namespace

void addPlanCommand(CLI::App &app, int &exitCode) {
  CLI::App *command = app.add_subcommand("plan", "Print what one step of distributed training does, sends and keeps");
  auto options = std::make_shared<PlanOptions>();
  command->add_option("--model", options->model, "The trainer's tiny (default), small or medium")
      ->excludes(
          command->add_option("--parameter", options->parameters,
                              "Instead of a model: NAME=AxB or NAME=AxB:DECAY, in the order of forward; repeatable"));
  command->add_option("--strategy", options->strategy, "naive, flat, overlap, bucketed, zero1-broadcast or zero1")
      ->capture_default_str();
  command->add_option("-n,--ranks", options->strategyOptions.worldSize, "How many ranks")->capture_default_str();
  command->add_option("--rank", options->rank, "Whose costs are counted")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--bucket", options->strategyOptions.bucketBytes, "Cap of a bucket: 512K (default 25M)")
      ->transform(byteSize());
  command->add_option("--accumulation", options->strategyOptions.accumulation, "Micro-batches a step")
      ->capture_default_str();
  command->add_option("--parameter-type", options->parameterType, "fp32, or bf16 with fp32 master weights")
      ->capture_default_str();
  command->add_option("--gradient-type", options->gradientType, "fp32 or bf16")->capture_default_str();
  command->add_option("--reduction-type", options->reductionType, "fp32 or bf16: what travels")->capture_default_str();
  command->add_flag("--json", options->json, "The plan and its costs as JSON");
  command->footer("\nEXAMPLES\n  tilewright plan -n 4 --model small\n"
                  "  tilewright plan -n 4 --parameter embed=10000x768:0.1 --parameter head=10000x768:0.1\n");
  command->callback([options, &exitCode] {
    Expected<dist::StepPlan> plan = planOf(*options);
    if (!plan) {
      exitCode = reportError(plan.error());
      return;
    }
    if (options->json)
      fmt::print(
          "{}\n",
          nlohmann::json{{"plan", *plan}, {"hash", plan->hash()}, {"costs", costs(*plan, options->rank)}}.dump());
    else
      fmt::print("{}", plan->describe(options->rank));
  });
}

} // namespace tilewright::tool
