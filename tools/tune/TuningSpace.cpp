#include "TuningSpace.h"
#include "tilewright/plan/Sm90Layout.h"
#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

namespace tilewright::tune {
namespace {

constexpr int kMostValues = 256;

struct Field {
  std::string_view name;
  std::vector<int> TuningSpace::*values;
  int step;
};

const Field kFields[] = {{"tile_q", &TuningSpace::tileQ, 16},
                         {"tile_kv", &TuningSpace::tileKV, 16},
                         {"stages", &TuningSpace::stages, 1},
                         {"warps", &TuningSpace::warps, 1},
                         {"column_warps", &TuningSpace::columnWarps, 1},
                         {"blocks_per_sm", &TuningSpace::blocksPerSM, 1},
                         {"split_kv", &TuningSpace::splitKV, 1}};

TuningSpace cpuSpace(const Problem &problem, const Target &target, KernelRole role) {
  TuningSpace space;
  space.tileQ = {16, 32, 48, 64, 80, 96, 128};
  space.tileKV = {16, 32, 64, 96, 128, 192, 256};
  space.stages = space.warps = space.columnWarps = space.blocksPerSM = space.splitKV = {1};
  space.overlaps = {Overlap::None};
  space.rescaleThresholds = {0};
  if (role != KernelRole::Forward || target.threads <= 1) return space;
  // Parts pay where whole q tiles leave threads idle.
  const int64_t blocks = problem.batch * problem.headsQ * ((problem.seqQ + 63) / 64);
  for (int split = 2; split <= 16 && blocks * split <= 16 * target.threads && problem.seqKV / split >= 128; split *= 2)
    space.splitKV.push_back(split);
  return space;
}

TuningSpace sm90Space(const Problem &problem, const Target &target) {
  TuningSpace space;
  space.tileQ = {64, 128, 192, 256};
  space.tileKV = {32, 48, 64, 80, 96, 112, 128, 160, 176, 192, 224, 256};
  space.stages = {1, 2, 3, 4};
  space.warps = {4, 8, 12, 16};
  space.columnWarps = space.blocksPerSM = space.splitKV = {1};
  space.overlaps = {Overlap::None, Overlap::Intra, Overlap::PingPong, Overlap::Both};
  space.rescaleThresholds = {8};
  const int64_t group = problem.groupSize();
  if (group > 1) space.packings = {false, true};
  // Parts pay where whole q tiles leave SMs idle.
  const int64_t rows = problem.seqQ * (group > 1 ? group : 1);
  const int64_t blocks = problem.batch * (group > 1 ? problem.headsKV : problem.headsQ) * ((rows + 63) / 64);
  for (int split = 2; split <= 64 && blocks * split <= 2 * target.smCount && problem.seqKV / split >= 256; split *= 2)
    space.splitKV.push_back(split);
  return space;
}

TuningSpace sm80Space(KernelRole role) {
  TuningSpace space;
  const bool ownsKeys = role == KernelRole::DKV || role == KernelRole::Fused;
  space.tileQ = ownsKeys ? std::vector{16, 32, 48, 64, 96, 128} : std::vector{16, 32, 64, 128, 256};
  space.tileKV = ownsKeys ? std::vector{16, 32, 64, 128, 256} : std::vector{16, 32, 48, 64, 80, 96, 128};
  space.stages = {1, 2, 3};
  space.warps = {1, 2, 4, 8};
  space.columnWarps = ownsKeys ? std::vector{1, 2, 4} : std::vector{1};
  space.blocksPerSM = {1, 2, 3, 4};
  space.splitKV = {1};
  space.overlaps = {Overlap::None};
  space.rescaleThresholds = {role == KernelRole::Forward ? 8.0 : 0.0};
  return space;
}

} // namespace

TuningSpace TuningSpace::of(const Problem &problem, const Target &target, KernelRole role) {
  const KernelFamily family = familyOf(problem, target, role);
  TuningSpace space = family == KernelFamily::Cpu    ? cpuSpace(problem, target, role)
                      : family == KernelFamily::Sm90 ? sm90Space(problem, target)
                                                     : sm80Space(role);
  // Without a mask all tiles have the same work, and the order in which they are dealt changes nothing.
  const bool ownsQ = role == KernelRole::Forward || role == KernelRole::DQ;
  space.orders = {Order::Plain};
  if (ownsQ && !problem.fullMask().empty()) space.orders = {Order::LongestFirst, Order::Plain};
  return space;
}

size_t TuningSpace::combinations() const {
  size_t product = orders.size() * overlaps.size() * rescaleThresholds.size() * packings.size();
  for (const Field &field : kFields)
    product *= (this->*field.values).size();
  return product;
}

Expected<RangeOverrides> RangeOverrides::parse(std::string_view text) {
  RangeOverrides overrides;
  constexpr const char *example = "for example tile_kv=16:256:16 or dq.stages=1|2|3";
  auto number = [](std::string_view piece, int &value) {
    auto [end, code] = std::from_chars(piece.data(), piece.data() + piece.size(), value);
    return !piece.empty() && code == std::errc() && end == piece.data() + piece.size() && value >= 1;
  };
  while (!text.empty()) {
    const std::string_view setting = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), setting.size() + 1));
    const size_t equals = setting.find('='), dot = setting.substr(0, equals).find('.');
    if (equals == std::string_view::npos)
      return fail(Stage::Input, fmt::format("--range: expected FIELD=VALUES, found '{}'", setting), example);
    Range range;
    if (dot != std::string_view::npos) {
      Expected<KernelRole> role = parseKernelRole(setting.substr(0, dot));
      if (!role) return fail(Stage::Input, fmt::format("--range: {}: {}", setting, role.error().message));
      range.role = *role;
    }
    range.field = setting.substr(dot == std::string_view::npos ? 0 : dot + 1,
                                 equals - (dot == std::string_view::npos ? 0 : dot + 1));
    const Field *field = std::ranges::find(kFields, range.field, &Field::name);
    if (field == std::end(kFields)) {
      std::vector<std::string_view> names;
      for (const Field &known : kFields)
        names.push_back(known.name);
      return fail(Stage::Input,
                  fmt::format("--range: expected one of {}, found '{}'", fmt::join(names, ", "), range.field), example);
    }
    const std::string_view values = setting.substr(equals + 1);
    bool good = !values.empty();
    if (const size_t colon = values.find(':'); colon != std::string_view::npos) {
      const std::string_view rest = values.substr(colon + 1);
      const size_t second = rest.find(':');
      int low = 0, high = 0, step = field->step;
      good = number(values.substr(0, colon), low) && number(rest.substr(0, second), high) && low <= high &&
             (second == std::string_view::npos || number(rest.substr(second + 1), step)) &&
             (high - low) / step < kMostValues;
      for (int value = low; good && value <= high; value += step)
        range.values.push_back(value);
    } else {
      for (size_t begin = 0; good && begin <= values.size();) {
        const size_t end = std::min(values.find('|', begin), values.size());
        good = number(values.substr(begin, end - begin), range.values.emplace_back());
        begin = end + 1;
      }
    }
    if (!good)
      return fail(
          Stage::Input,
          fmt::format("--range: {}: expected LOW:HIGH[:STEP] or values with | between them, at most {}, found '{}'",
                      range.field, kMostValues, values),
          example);
    std::ranges::sort(range.values);
    range.values.erase(std::unique(range.values.begin(), range.values.end()), range.values.end());
    overrides.ranges.push_back(std::move(range));
  }
  return overrides;
}

void RangeOverrides::apply(KernelRole role, TuningSpace &space) const {
  for (bool specific : {false, true})
    for (const Range &range : ranges)
      if (range.role.has_value() == specific && (!specific || *range.role == role))
        space.*std::ranges::find(kFields, range.field, &Field::name)->values = range.values;
}

} // namespace tilewright::tune
