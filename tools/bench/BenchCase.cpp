#include "BenchCase.h"
#include <algorithm>
#include <charconv>
#include <fmt/format.h>

namespace tilewright::bench {
namespace {

bool parseNumber(std::string_view text, int64_t &value) {
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::vector<std::string> splitAtCommas(std::string_view text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    items.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

struct Pair {
  int64_t first = 0, second = 0;
};

/// "A" or "A:B", both positive; with one number both are it.
Expected<Pair> parsePair(std::string_view option, std::string_view text) {
  Pair pair;
  size_t colon = text.find(':');
  bool good = parseNumber(text.substr(0, colon), pair.first) && pair.first > 0;
  pair.second = pair.first;
  if (good && colon != std::string_view::npos)
    good = parseNumber(text.substr(colon + 1), pair.second) && pair.second > 0;
  if (!good)
    return fail(
        Stage::Input,
        fmt::format("{}: expected positive whole numbers N or N:M, separated by commas, found '{}'", option, text));
  return pair;
}

Expected<std::vector<Pair>> parsePairs(std::string_view option, std::string_view text) {
  std::vector<Pair> pairs;
  for (const std::string &item : splitAtCommas(text)) {
    Expected<Pair> pair = parsePair(option, item);
    if (!pair) return propagate(pair);
    pairs.push_back(*pair);
  }
  return pairs;
}

Status applyMask(std::string_view mask, Problem &problem) {
  constexpr std::string_view window = "window:";
  int64_t keys = 0;
  if (mask == "none") return {};
  problem.causal = true;
  if (mask == "causal") return {};
  if (mask.starts_with(window) && parseNumber(mask.substr(window.size()), keys) && keys > 0) {
    problem.window.left = keys - 1;
    return {};
  }
  return fail(Stage::Input,
              fmt::format("--masks: expected none, causal or window:N, separated by commas, found '{}'", mask),
              "window:N is causal and sees the last N keys, the query's own among them");
}

void nameCase(BenchCase &c) {
  const Problem &p = c.problem;
  c.name =
      fmt::format("d{} {} {}{}", c.dims(), c.mask, c.lengths(), p.direction == Direction::Backward ? " backward" : "");
}

/// Heads of the grid: as given, or so many that heads * dim is `hidden`.
Expected<Pair> gridHeads(const GridOptions &options, int64_t dim) {
  if (options.heads == "auto") {
    int64_t heads = std::max<int64_t>(1, options.hidden / dim);
    return Pair{heads, heads};
  }
  return parsePair("--heads", options.heads);
}

Status addGrid(const GridOptions &options, DType dtype, std::vector<BenchCase> &cases) {
  Expected<std::vector<Pair>> dims = parsePairs("--dims", options.dims), seqs = parsePairs("--seqs", options.seqs);
  if (!dims) return propagate(dims);
  if (!seqs) return propagate(seqs);
  for (Pair dim : *dims)
    for (const std::string &mask : splitAtCommas(options.masks))
      for (Pair seq : *seqs) {
        Expected<Pair> heads = gridHeads(options, dim.first);
        if (!heads) return propagate(heads);
        BenchCase c{"table", "", mask, {}};
        Problem &p = c.problem;
        p.batch = std::max<int64_t>(1, options.tokens / seq.first);
        p.headsQ = heads->first;
        p.headsKV = heads->second;
        p.seqQ = seq.first;
        p.seqKV = seq.second;
        p.dimQK = dim.first;
        p.dimV = dim.second;
        p.dtype = dtype;
        p.direction = options.backward ? Direction::Backward : Direction::Forward;
        if (Status status = applyMask(mask, p); !status) return status;
        if (Status status = p.validate(); !status) return status;
        nameCase(c);
        cases.push_back(std::move(c));
      }
  return {};
}

/// Shapes outside the table that are known to be hard on this class of GPU: unequal head dims, short windows, few query
/// tiles over a long cache, and decode.
constexpr struct NamedShape {
  const char *mask;
  int64_t batch, headsQ, headsKV, seqQ, seqKV, dimQK, dimV;
} kHopperShapes[] = {
    {"none", 1, 128, 128, 8192, 8192, 192, 128},   {"none", 2, 128, 128, 8192, 8192, 192, 128},
    {"causal", 1, 128, 128, 8192, 8192, 192, 128}, {"causal", 2, 128, 128, 8192, 8192, 192, 128},
    {"window:128", 2, 64, 8, 8192, 8192, 64, 64},  {"none", 1, 9, 9, 1024, 62208, 128, 128},
    {"none", 1, 32, 8, 1, 131072, 128, 128},       {"none", 16, 32, 8, 1, 8192, 128, 128},
    {"none", 64, 32, 8, 1, 8192, 128, 128},
};

Status addHopper(const GridOptions &options, DType dtype, std::vector<BenchCase> &cases) {
  for (const NamedShape &shape : kHopperShapes) {
    BenchCase c{"hopper", "", shape.mask, {}};
    Problem &p = c.problem;
    p.batch = shape.batch;
    p.headsQ = shape.headsQ;
    p.headsKV = shape.headsKV;
    p.seqQ = shape.seqQ;
    p.seqKV = shape.seqKV;
    p.dimQK = shape.dimQK;
    p.dimV = shape.dimV;
    p.dtype = dtype;
    if (shape.seqQ == 1) {
      if (options.backward) continue; // decoding has no gradients
      c.rate = Rate::Bytes;
      c.name = fmt::format("decode b{} kv {}", p.batch, p.seqKV);
    } else {
      p.direction = options.backward ? Direction::Backward : Direction::Forward;
      nameCase(c);
      c.name +=
          fmt::format(" b{} h{}{}", p.batch, p.headsQ, p.headsQ == p.headsKV ? "" : fmt::format(":{}", p.headsKV));
    }
    if (Status status = applyMask(c.mask, p); !status) return status;
    cases.push_back(std::move(c));
  }
  return {};
}

} // namespace

std::string BenchCase::lengths() const {
  const Problem &p = problem;
  return p.seqQ == p.seqKV ? fmt::format("{}", p.seqQ) : fmt::format("{}:{}", p.seqQ, p.seqKV);
}

std::string BenchCase::dims() const {
  const Problem &p = problem;
  return p.dimQK == p.dimV ? fmt::format("{}", p.dimQK) : fmt::format("{}:{}", p.dimQK, p.dimV);
}

double BenchCase::flops() const { return attentionFlops(problem, countedPairs(problem)); }

double BenchCase::kvBytes() const {
  const Problem &p = problem;
  return static_cast<double>(p.batch) * static_cast<double>(p.headsKV) * static_cast<double>(p.seqKV) *
         static_cast<double>((p.dimQK + p.dimV) * sizeInBytes(p.dtype));
}

double BenchCase::rateOf(double ms) const { return rate == Rate::Flops ? flops() / ms * 1e-9 : kvBytes() / ms * 1e-6; }

Expected<std::vector<BenchCase>> benchCases(const GridOptions &options) {
  Expected<DType> dtype = parseDType(options.dtype);
  if (!dtype) return propagate(dtype);
  if (*dtype == DType::F32)
    return fail(Stage::Input, "--dtype: expected bf16 or fp16, found fp32", "the peers' kernels have no fp32");
  std::vector<BenchCase> cases;
  for (const std::string &set : splitAtCommas(options.cases)) {
    Status status;
    if (set == "table")
      status = addGrid(options, *dtype, cases);
    else if (set == "hopper")
      status = addHopper(options, *dtype, cases);
    else
      status = fail(Stage::Input, fmt::format("--cases: expected table, hopper or table,hopper, found '{}'", set),
                    "table is the grid that --dims, --seqs and --masks state");
    if (!status) return propagate(status);
  }
  return cases;
}

double countedPairs(const Problem &problem) {
  const double all = static_cast<double>(problem.seqQ) * static_cast<double>(problem.seqKV);
  const Window window = problem.window;
  if (!problem.causal && window.left < 0 && window.right < 0) return all;
  if (problem.causal && window.left < 0 && window.right <= 0 && problem.seqQ == problem.seqKV) return all / 2;
  const int64_t right = !problem.causal ? window.right : window.right < 0 ? 0 : std::min<int64_t>(window.right, 0);
  double pairs = 0;
  for (int64_t q = 0; q < problem.seqQ; ++q) {
    const int64_t diagonal = q + problem.seqKV - problem.seqQ;
    const int64_t first = window.left < 0 ? 0 : std::max<int64_t>(0, diagonal - window.left);
    const int64_t last = right < 0 ? problem.seqKV - 1 : std::min(problem.seqKV - 1, diagonal + right);
    pairs += static_cast<double>(std::max<int64_t>(0, last - first + 1));
  }
  return pairs;
}

} // namespace tilewright::bench
