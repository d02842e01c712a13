#include "ProblemOptions.h"

#include "OptionChecks.h"
#include "tilewright/Environment.h"
#include "tilewright/cuda/Driver.h"
#include "tilewright/expr/Parser.h"
#include "tilewright/tensor/Npy.h"
#include <algorithm>
#include <charconv>
#include <fmt/format.h>

namespace tilewright::tool {

const char *const kExpressionHelp =
    "EXPRESSIONS (a mask is a condition: true where query q may see key k; a score is a number)\n"
    "  variables   q k positions from 0; sq sk lengths; h query head; b batch entry; s the scaled score (scores only)\n"
    "  operators   + - * / // % (// and % floor)   < <= > >= == !=   && || ! (also: and or not)   ( )\n"
    "  functions   where(c, x, y) min(x, y) max(x, y) abs(x) exp(x) log(x) tanh(x)\n"
    "  tables      --table NAME=FILE.npy, read as NAME[q] NAME[k] NAME[h] NAME[b] or NAME[b, q] NAME[b, k] NAME[b, h]\n"
    "  causal is `k <= q + sk - sq`; --window L,R is `k >= q + sk - sq - L && k <= q + sk - sq + R`\n"
    "  hidden keys tiles that the mask leaves out are never read; NaN or infinity in a hidden key beside seen ones "
    "stays\n"
    "              hidden on the CPU, but may reach the other queries of its tile on GPUs\n";

void ProblemOptions::addTo(CLI::App &command, bool withTensors) {
  auto group = [&](const char *name) { return command.add_option_group(name); };
  CLI::App *shape = group("Shape");
  given = {
      shape->add_option("--batch", batch, "Batch entries")->capture_default_str(),
      shape->add_option("--heads", heads, "Query heads, or H:HKV with fewer kv heads (GQA)")->capture_default_str(),
      shape->add_option("--seq", seq, "Sequence length, or SQ:SK")->capture_default_str(),
      shape->add_option("--dim", dim, "Head dimension, or D:DV where v's differs")->capture_default_str(),
  };
  shape->add_option("--dtype", dtype, "bf16, fp16 or fp32; with bf16, uint16 .npy files are bfloat16 bit patterns")
      ->capture_default_str();
  shape->add_option("--layout", layout, "bshd (batch, seq, heads, dim) or bhsd")->capture_default_str();

  CLI::App *function = group("Function");
  function->add_flag("--causal", causal, "Query i sees keys j <= i + SK - SQ");
  function->add_option("--window", window, "L,R: keys from L before to R after the diagonal, inclusive; -1 is no bound")
      ->check(notEmpty());
  function->add_option("--mask", mask, "Condition of q and k; and-ed with --causal and --window")->check(notEmpty());
  function->add_option("--score", score, "Number to use instead of the scaled score s")->check(notEmpty());
  function->add_option("--softcap", softcap, "Use CAP * tanh(s / CAP); 0 is none")->capture_default_str();
  function->add_option("--scale", scale, "Factor of q k^T (default 1/sqrt(D))");
  function->add_option("--table", tables, "NAME=FILE.npy: an int32 or float32 table for --mask and --score")
      ->check(notEmpty());
  function->add_flag("--backward", backward, "Gradients too");

  CLI::App *how = group("How");
  how->add_option("--target", target,
                  "auto, cpu, or an architecture: sm_80, sm_86, sm_87, sm_89, sm_90, sm_90a, sm_100, sm_120, "
                  "x86-64-v2, -v3, -v4")
      ->capture_default_str();
  how->add_option("--schedule", schedule,
                  "FIELD=VALUE,...: tile_q tile_kv stages warps column_warps blocks_per_sm order overlap split_kv "
                  "pack_heads rescale_threshold, each also for one kernel as "
                  "forward.F, delta.F, dq.F, dkv.F, fused.F; backward=fused (faster) or backward=two_kernel (the same "
                  "bits in every run)");
  if (!withTensors) return;

  CLI::App *input = group("Data");
  input->add_option("--q", q, "q as a .npy file (shape and layout as given by --layout); with --k and --v")
      ->check(notEmpty());
  input->add_option("--k", k, "k as a .npy file")->check(notEmpty());
  input->add_option("--v", v, "v as a .npy file")->check(notEmpty());
  input->add_option("--do", dO, "Gradient of o as a .npy file, for --backward")->check(notEmpty());
  input->add_option("--seed", seed, "Seed of the random tensors used without files")
      ->capture_default_str()
      ->check(wholeNumber());
  input->add_option("--data", data, "Kind of random tensors: normal, outliers, sink, equal, negative")
      ->capture_default_str();
}

namespace {

/// "A" or "A:B"; with one number both are it.
Expected<std::pair<int64_t, int64_t>> parsePair(std::string_view option, std::string_view text) {
  auto number = [&](std::string_view part, int64_t &value) {
    auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), value);
    return code == std::errc() && end == part.data() + part.size() && !part.empty();
  };
  size_t colon = text.find(':');
  int64_t first = 0, second = 0;
  bool good = number(text.substr(0, colon), first);
  second = first;
  if (good && colon != std::string_view::npos) good = number(text.substr(colon + 1), second);
  if (!good)
    return fail(Stage::Input, fmt::format("{}: expected a whole number N or two as N:M, found '{}'", option, text));
  return std::pair(first, second);
}

Expected<Window> parseWindow(std::string_view text) {
  Window window;
  size_t comma = text.find(',');
  auto parse = [](std::string_view part, int64_t &value) {
    auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), value);
    return code == std::errc() && end == part.data() + part.size() && !part.empty();
  };
  if (comma == std::string_view::npos || !parse(text.substr(0, comma), window.left) ||
      !parse(text.substr(comma + 1), window.right))
    return fail(
        Stage::Input,
        fmt::format("--window: expected L,R with two whole numbers of at least 0, or -1 for no bound, found '{}'",
                    text));
  return window;
}

/// Element type of a file as the problem's dtype.
Status checkElementType(const Tensor &tensor, DType dtype, const std::string &path) {
  if (tensor.type() == elementType(dtype)) return {};
  return fail(Stage::Input,
              fmt::format("{}: expected {} (--dtype {}), found {}", path, toString(elementType(dtype)), toString(dtype),
                          toString(tensor.type())),
              "give --dtype fp32, fp16 or bf16 as the files are; all tensors share one type");
}

struct File {
  const char *option;
  const std::string &path;
  Tensor &tensor;
};

Status readTensors(const ProblemOptions &options, Problem &problem, RandomTensors &tensors) {
  if (options.q.empty() || options.k.empty() || options.v.empty())
    return fail(Stage::Input, "--q, --k and --v belong together: give all three or none");
  if (problem.direction == Direction::Backward && options.dO.empty())
    return fail(Stage::Input, "--backward with tensors from files needs the gradient of o: --do FILE.npy");
  NpyTensorOptions how{problem.layout, problem.dtype == DType::BF16};
  File files[] = {{"--q", options.q, tensors.q},
                  {"--k", options.k, tensors.k},
                  {"--v", options.v, tensors.v},
                  {"--do", options.dO, tensors.dO}};
  for (File &file : files) {
    if (file.path.empty()) continue;
    Expected<Tensor> tensor = readTensor(file.path, how);
    if (!tensor) return propagate(tensor);
    if (Status status = checkElementType(*tensor, problem.dtype, file.path); !status) return status;
    file.tensor = std::move(*tensor);
  }
  TensorShape q = tensors.q.shape(), k = tensors.k.shape(), v = tensors.v.shape();
  problem.batch = q.batch;
  problem.headsQ = q.heads;
  problem.seqQ = q.rows;
  problem.dimQK = q.dim;
  problem.headsKV = k.heads;
  problem.seqKV = k.rows;
  problem.dimV = v.dim;

  auto expect = [&](const File &file, TensorShape shape) -> Status {
    if (!file.tensor.valid() || file.tensor.shape() == shape) return {};
    return fail(Stage::Input,
                fmt::format("{} ({}): expected shape {} to fit the other tensors, found {}", file.path, file.option,
                            shape.text(problem.layout), file.tensor.shape().text(problem.layout)));
  };
  if (Status status = expect(files[1], shapeOfK(problem)); !status) return status;
  if (Status status = expect(files[2], shapeOfV(problem)); !status) return status;
  return expect(files[3], shapeOfO(problem));
}

/// Files say their shape themselves; options that are given too must agree.
Status checkStatedShape(const ProblemOptions &options, const Problem &stated, const Problem &found) {
  auto text = [](const std::string &name, const Problem &p) {
    if (name == "--batch") return fmt::format("{}", p.batch);
    if (name == "--heads") return fmt::format("{}:{}", p.headsQ, p.headsKV);
    if (name == "--seq") return fmt::format("{}:{}", p.seqQ, p.seqKV);
    return fmt::format("{}:{}", p.dimQK, p.dimV);
  };
  for (const CLI::Option *option : options.given) {
    std::string name = option->get_name(), expected = text(name, stated), actual = text(name, found);
    if (option->count() && expected != actual)
      return fail(Stage::Input,
                  fmt::format("{} {}: expected {} as in the files, found {}", name, option->as<std::string>(), actual,
                              expected),
                  "with --q, --k and --v the shape comes from the files: leave the option out");
  }
  return {};
}

/// Finds the tables that the expressions mention and loads their files.
Status loadTables(const ProblemOptions &options, ProblemInputs &inputs, bool required) {
  std::map<std::string, std::string> paths;
  for (const std::string &text : options.tables) {
    size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      return fail(Stage::Input, fmt::format("--table: expected NAME=FILE.npy, found '{}'", text));
    if (!paths.emplace(text.substr(0, equals), text.substr(equals + 1)).second)
      return fail(Stage::Input, fmt::format("--table: '{}' is given twice", text.substr(0, equals)));
  }
  Expected<std::vector<TableSpec>> specs = tablesRead(options.mask, options.score);
  if (!specs) return propagate(specs);
  for (auto &[name, path] : paths)
    if (std::none_of(specs->begin(), specs->end(), [&](const TableSpec &spec) { return spec.name == name; }))
      return fail(Stage::Input, fmt::format("--table {}={}: no expression reads it", name, path));
  for (TableSpec &spec : *specs) {
    auto path = paths.find(spec.name);
    if (path == paths.end() && required)
      return fail(Stage::Input, fmt::format("table '{}' is read by an expression but not given", spec.name),
                  fmt::format("add --table {}=FILE.npy", spec.name));
    if (path != paths.end()) {
      Expected<Table> table = readTable(path->second);
      if (!table) return propagate(table);
      spec.isFloat = table->isFloat();
      if (required)
        if (Status status = table->check(spec, inputs.problem); !status) return status;
      inputs.tables.push_back(std::move(*table));
    }
    inputs.problem.tables.push_back(spec);
  }
  return {};
}

} // namespace

std::vector<expr::TableData> ProblemInputs::tableData() const {
  std::vector<expr::TableData> data;
  for (const Table &table : tables)
    data.push_back(table.data());
  return data;
}

Expected<ProblemInputs> makeInputs(const ProblemOptions &options, bool withTensors) {
  ProblemInputs inputs;
  Problem &p = inputs.problem;
  Expected<std::pair<int64_t, int64_t>> heads = parsePair("--heads", options.heads);
  if (!heads) return propagate(heads);
  Expected<std::pair<int64_t, int64_t>> seq = parsePair("--seq", options.seq);
  if (!seq) return propagate(seq);
  Expected<std::pair<int64_t, int64_t>> dim = parsePair("--dim", options.dim);
  if (!dim) return propagate(dim);
  Expected<DType> dtype = parseDType(options.dtype);
  if (!dtype) return propagate(dtype);
  Expected<Layout> layout = parseLayout(options.layout);
  if (!layout) return propagate(layout);
  p.batch = options.batch;
  std::tie(p.headsQ, p.headsKV) = *heads;
  std::tie(p.seqQ, p.seqKV) = *seq;
  std::tie(p.dimQK, p.dimV) = *dim;
  p.dtype = *dtype;
  p.layout = *layout;
  p.causal = options.causal;
  p.softcap = options.softcap;
  p.scale = options.scale;
  p.mask = options.mask;
  p.score = options.score;
  p.direction = options.backward ? Direction::Backward : Direction::Forward;
  if (!options.window.empty()) {
    Expected<Window> window = parseWindow(options.window);
    if (!window) return propagate(window);
    p.window = *window;
  }

  inputs.fromFiles = withTensors && !(options.q.empty() && options.k.empty() && options.v.empty());
  if (inputs.fromFiles) {
    Problem stated = p;
    if (Status status = readTensors(options, p, inputs.tensors); !status) return propagate(status);
    if (Status status = checkStatedShape(options, stated, p); !status) return propagate(status);
  }
  if (Status status = loadTables(options, inputs, withTensors); !status) return propagate(status);
  if (Status status = p.validate(); !status) return propagate(status);
  if (withTensors && !inputs.fromFiles) {
    if (!options.dO.empty()) return fail(Stage::Input, "--do without --q, --k and --v: random tensors bring their own");
    Expected<DataPattern> pattern = parseDataPattern(options.data);
    if (!pattern) return propagate(pattern);
    Expected<RandomTensors> tensors = randomTensors(p, options.seed, *pattern);
    if (!tensors) return propagate(tensors);
    inputs.tensors = std::move(*tensors);
  }
  return inputs;
}

Expected<Target> chooseTarget(const std::string &name) {
  Expected<Target> target = Target::hostCpu();
  if (name != "auto") {
    target = Target::parse(name);
  } else if (Expected<std::shared_ptr<const cuda::Driver>> driver = cuda::Driver::open()) {
    const cuda::DeviceInfo &device = (*driver)->devices().front();
    target = Target::forComputeCapability(device.major, device.minor);
  }
  if (!target || !target->isCpu()) return target;
  Expected<Environment> environment = Environment::ofProcess();
  if (!environment) return propagate(environment);
  if (environment->threads) target->threads = environment->threads;
  return target;
}

} // namespace tilewright::tool
