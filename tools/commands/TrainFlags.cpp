#include "TrainFlags.h"
#include "OptionChecks.h"
#include <fmt/format.h>

namespace tilewright::tool {
void TrainFlags::addTo(CLI::App &command) {
  train::TrainOptions &v = values;
  CLI::App *data = command.add_option_group("Data");
  data->add_option("--data", v.data, "Text, or little-endian uint16 tokens")->required();
  data->add_option("--format", format, "auto | text | uint16; auto: uint16 for *.bin, *.u16, *.tokens")
      ->capture_default_str();
  data->add_option("--validation-data", v.validationData, "Default: the end of --data");
  data->add_option("--validation-share", v.validationShare, "Of --data; 0: no validation")->capture_default_str();
  data->add_option("--validate-every", v.validateEvery, "Steps")->capture_default_str();
  data->add_option("--validation-sequences", v.validationSequences, "At most, spread over the data")
      ->capture_default_str();

  CLI::App *shape = command.add_option_group("Model");
  shape->add_option("--model", model, "tiny | small | medium")->capture_default_str();
  shape->add_option("--context", context, "Tokens a sequence (default: tiny 64, small 512, medium 1024)");
  shape->add_option("--vocabulary", vocabulary, "Default: 256 for text, whose tokens are bytes, else 10000");
  shape->add_option("--width", width, "Instead of the preset's");
  shape->add_option("--layers", layers, "Instead of the preset's");
  shape->add_option("--heads", heads, "Instead of the preset's");
  shape->add_option("--hidden", hidden, "Instead of the preset's");

  CLI::App *machine = command.add_option_group("Machine");
  machine->add_option("--target", target, "auto | cpu | cuda; auto: GPUs if every rank has one of its own")
      ->capture_default_str();
  machine
      ->add_option("--precision", precision,
                   "auto | fp32 | bf16, which has fp32 master weights; auto: bf16 on GPUs, else fp32")
      ->capture_default_str();
  machine->add_flag("--tf32", tf32, "On GPUs, let fp32 matrix products round their operands to TF32");
  machine
      ->add_option("--backward", backward,
                   "two_kernel | fused: attention's gradients on GPUs; fused is faster, but its last bits differ from "
                   "run to run")
      ->capture_default_str();

  CLI::App *training = command.add_option_group("Training");
  training->add_option("--steps", v.steps, "Of the whole training")->capture_default_str();
  training->add_option("--stop-at", v.stopAt, "End after this step, with a checkpoint to go on from");
  training->add_option("--batch", v.batch, "Sequences a step over all ranks")->capture_default_str();
  training->add_option("--accumulation", v.accumulation, "Parts that each rank's sequences are computed in")
      ->capture_default_str();
  training->add_option("--learning-rate", v.learningRate, "At its highest")->capture_default_str();
  training->add_option("--minimum-rate", minimumRate, "At the end of the cosine (default: a tenth)");
  training->add_option("--warmup", v.warmup, "Steps")->capture_default_str();
  training->add_option("--weight-decay", v.weightDecay, "AdamW's, of matrices")->capture_default_str();
  training->add_option("--beta1", v.beta1)->capture_default_str();
  training->add_option("--beta2", v.beta2)->capture_default_str();
  training->add_option("--epsilon", v.epsilon)->capture_default_str();
  training->add_option("--clip", v.maxNorm, "Gradients' global norm; 0: leave it")->capture_default_str();
  training->add_option("--non-finite", nonFinite, "stop | skip | continue: at NaN or infinite gradients")
      ->capture_default_str();
  training->add_option("--seed", v.seed, "Of initial parameters and data order")->capture_default_str();

  CLI::App *engine = command.add_option_group("Ranks");
  engine->add_option("--strategy", strategy, "naive | flat | overlap | bucketed | zero1-broadcast | zero1")
      ->capture_default_str();
  engine->add_option("--bucket", v.bucketBytes, "Bytes of gradients a message (default 25M over Gloo, 200M over NCCL)")
      ->transform(byteSize());
  engine->add_option("--reduction", reduction, "fp32 | bf16: gradients on their way")->capture_default_str();

  CLI::App *checkpoint = command.add_option_group("Checkpoints");
  checkpoint->add_option("--checkpoints", v.checkpoints, "Folder; without it none are written");
  checkpoint->add_option("--checkpoint-every", v.checkpointEvery, "Steps, and after the last")->capture_default_str();
  checkpoint->add_option("--keep", v.keepCheckpoints, "So many; 0: all")->capture_default_str();
  checkpoint->add_option("--resume", v.resume, "A checkpoint, or a folder of them: go on from the newest");
}

Expected<train::TrainOptions> TrainFlags::options() const {
  train::TrainOptions o = values;
  Expected<train::TokenFormat> kind = train::tokenFormat(format, o.data);
  if (!kind) return propagate(kind);
  o.format = *kind;
  Expected<train::ModelConfig> preset = train::ModelConfig::preset(model);
  if (!preset) return propagate(preset);
  o.model = *preset;
  o.model.vocabulary = vocabulary.value_or(train::defaultVocabulary(o.format));
  if (context) o.model.context = *context;
  for (auto [value, field] : {std::pair{&width, &o.model.width},
                              {&layers, &o.model.layers},
                              {&heads, &o.model.heads},
                              {&hidden, &o.model.hidden}})
    if (*value) *field = **value;
  Expected<dist::Strategy> parsed = dist::parseStrategy(strategy);
  if (!parsed) return propagate(parsed);
  o.strategy = *parsed;
  Expected<ElementType> reduced = parseTrainingType("--reduction", reduction);
  if (!reduced) return propagate(reduced);
  o.reductionType = *reduced;
  o.minimumRate = minimumRate.value_or(o.learningRate / 10);
  using NonFinite = dist::StepSettings::NonFinite;
  if (nonFinite == "stop")
    o.nonFinite = NonFinite::Stop;
  else if (nonFinite == "skip")
    o.nonFinite = NonFinite::Skip;
  else if (nonFinite == "continue")
    o.nonFinite = NonFinite::Continue;
  else
    return fail(Stage::Input, fmt::format("--non-finite: expected stop, skip or continue, found '{}'", nonFinite));
  if (Status status = o.validate(); !status) return propagate(status);
  return o;
}

Expected<SessionOptions> TrainFlags::session() const {
  SessionOptions o;
  o.target = target;
  o.tf32 = tf32;
  if (precision != "auto") {
    Expected<ElementType> type = parseTrainingType("--precision", precision);
    if (!type) return propagate(type);
    o.precision = *type;
  }
  Expected<Backward> strategy = parseBackward(backward);
  if (!strategy) {
    strategy.error().message = "--backward: " + strategy.error().message;
    return propagate(strategy);
  }
  o.attention = *strategy;
  return o;
}

} // namespace tilewright::tool
